# The package set. The host's programs come in through the paths that nix.conf lets into the sandbox, /rust being the Rust
# toolchain's. Beside this file setup.sh lays crates/, cargo-auditable, cargo-deny, and compilers, which says the versions of
# the host's.
{
  system,
  host ? system,
}:
let
  lib = import ./lib.nix;
  arch = builtins.head (builtins.split "-" host);

  run =
    {
      name,
      script,
      env ? { },
      nativeBuildInputs ? [ ],
      passthru ? { },
      meta ? { },
    }:
    derivation (
      {
        inherit name system;
        compilers = builtins.readFile ./compilers;
        builder = "/bin/bash";
        args = [
          "-euo"
          "pipefail"
          "-c"
          ''
            export PATH=${lib.makeBinPath nativeBuildInputs}:/rust/bin:/usr/bin:/bin HOME=/build SOURCE_DATE_EPOCH=1 LC_ALL=C.UTF-8
            umask 022
            ${script}
            # Not exec of the script's last command: a program of coreutils closes its output before it exits, which nix takes
            # for the end and kills it (NixOS/nix#2176).
            exit
          ''
        ];
      }
      // env
    )
    // passthru
    // {
      inherit meta;
    };

  runCommand =
    name: args: script:
    run {
      inherit name script;
      nativeBuildInputs = args.nativeBuildInputs or [ ];
      env = removeAttrs args [
        "meta"
        "nativeBuildInputs"
        "passthru"
      ];
      passthru = args.passthru or { };
      meta = args.meta or { };
    };

  # A program that is the host's, found by its name.
  hosts =
    name:
    run {
      inherit name;
      script = "mkdir -p $out/bin";
    };

  # All crates of a Cargo.lock, each checked against it by nix.
  vendor =
    lockFile:
    let
      crates = builtins.filter (crate: crate ? source) (lib.importTOML lockFile).package;
      line =
        {
          name,
          version,
          checksum,
          ...
        }:
        let
          archive = builtins.path {
            name = "crate";
            path = ./crates + "/${name}-${version}.crate";
            sha256 = checksum;
            recursive = false;
          };
        in
        "${name}-${version} ${checksum} ${archive}\n";
      table = builtins.toFile "crates" (builtins.concatStringsSep "" (map line crates));
    in
    run {
      name = "vendor";
      script = ''
        while read -r crate checksum archive; do
          mkdir -p $out/$crate
          tar xzf $archive -C $out/$crate --strip-components=1
          printf '{"files":{},"package":"%s"}' $checksum > $out/$crate/.cargo-checksum.json
        done < ${table}
      '';
    };

  target = "${arch}-unknown-linux-gnu";
  # As nixpkgs': the vendored sources copied and so as old as the build, cargo's build with the dependencies' names in it
  # (cargo-auditable) and with all symbols, of which strip takes those for debuggers, or all where it is told to.
  buildRustPackage =
    static:
    {
      pname,
      version,
      src,
      cargoLock,
      ...
    }@args:
    run {
      name = "${pname}-${version}";
      nativeBuildInputs = (args.nativeBuildInputs or [ ]) ++ [ cargo-auditable ];
      env = {
        RUSTFLAGS = lib.optionalString static "-Ctarget-feature=+crt-static -Crelocation-model=static";
      }
      // args.env or { };
      passthru = args.passthru or { };
      script = ''
        mkdir -p /build/.cargo
        printf '[source]\ncrates-io.replace-with = "vendored"\nvendored.directory = "/build/cargo-vendor-dir"\n' > /build/.cargo/config.toml
        export CARGO_HOME=/build/.cargo
        cp -r --no-preserve=mode ${vendor cargoLock.lockFile} /build/cargo-vendor-dir
        cp -r --no-preserve=mode,timestamps ${src} /build/source
        cd /build/source
        ${args.preConfigure or ""}
        ${args.buildPhase or ''
          export CARGO_PROFILE_RELEASE_STRIP=false
          cargo auditable build -j $NIX_BUILD_CORES --target ${target} --offline --profile release
        ''
        }
        ${lib.optionalString (args.doCheck or true) "cargo test --release --frozen"}
        ${args.installPhase or "install -D target/${target}/release/${pname} $out/bin/${pname}"}
        ${lib.optionalString (!(args.dontFixup or false)) ''
          if [ -d $out/bin ]; then strip ${
            if args.stripAllList or [ ] == [ "bin" ] then "--strip-all" else "--strip-debug"
          } $out/bin/*; fi
        ''}
      '';
    };
  # A program that lies beside this file.
  beside =
    name:
    runCommand name { }
      "install -D ${
        builtins.path {
          inherit name;
          path = ./. + "/${name}";
        }
      } $out/bin/${name}";
  cargo-auditable = beside "cargo-auditable";

  # One layer: what the configuration refers to.
  archive =
    image:
    run {
      name = "${image.name}.tar";
      env = {
        __structuredAttrs = true;
        exportReferencesGraph.closure = [
          (runCommand "config.json" { config = builtins.toJSON image.config; } "echo $config > $out")
        ];
        inherit image;
      };
      script = ''
        . .attrs.sh
        /usr/bin/python3 ${./image.py} .attrs.json "''${outputs[out]}"
      '';
    };

  pkgs = {
    inherit lib runCommand;
    stdenv.hostPlatform = {
      system = host;
      rust.rustcTarget = target;
      go.GOARCH =
        {
          x86_64 = "amd64";
          aarch64 = "arm64";
        }
        .${arch};
    };
    rustPlatform = {
      buildRustPackage = buildRustPackage false;
      rustLibSrc = "/rust/lib/rustlib/src/rust/library";
    };
    pkgsStatic = pkgs // {
      rustPlatform.buildRustPackage = buildRustPackage true;
    };
    # Can be evaluated, not built.
    pkgsCross.aarch64-multiplatform = import ./. {
      inherit system;
      host = "aarch64-linux";
    };
    dockerTools = {
      buildLayeredImage =
        { compressor, ... }@image:
        assert compressor == "none";
        archive image;
      streamLayeredImage =
        image:
        runCommand "stream-${image.name}" { meta.mainProgram = "stream"; } ''
          printf '#!/bin/sh\nexec cat %s\n' ${archive image} > $out
          chmod +x $out
        '';
    };
    mkShell =
      { packages, env }:
      run {
        inherit env;
        name = "shell";
        nativeBuildInputs = packages;
        script = "touch $out";
      };
    writeShellApplication =
      {
        name,
        text,
        runtimeInputs,
      }:
      run {
        inherit name;
        env = { inherit text; };
        nativeBuildInputs = runtimeInputs;
        meta.mainProgram = name;
        script = ''
          mkdir -p $out/bin
          printf '#!/bin/bash\nset -euo pipefail\n%s\n' "$text" > $out/bin/${name}
          chmod +x $out/bin/${name}
          bash -n $out/bin/${name}
        '';
      };
    nukeReferences = run {
      name = "nuke-refs";
      script = ''
        mkdir -p $out/bin
        printf '#!/bin/bash\nLC_ALL=C sed -i -E "s,(${builtins.storeDir}/)[0-9a-z]{32}-,\\\\1eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee-,g" "$@"\n' > $out/bin/nuke-refs
        chmod +x $out/bin/nuke-refs
      '';
    };
    # The host's authorities, of Debian's package ca-certificates.
    cacert =
      runCommand "cacert" { }
        "install -D -m 444 ${
          builtins.path {
            name = "ca-bundle.crt";
            path = ./ca-bundle.crt;
          }
        } $out/etc/ssl/certs/ca-bundle.crt";
    prometheus.cli = hosts "promtool";
    cargo-about = beside "cargo-about";
    cargo-deny = beside "cargo-deny";
    rust-audit-info = beside "rust-audit-info";
  }
  // lib.genAttrs [
    "cargo"
    "clippy"
    "curl"
    "deadnix"
    "git"
    "go"
    "jq"
    "kubectl"
    "kustomize"
    "nixfmt"
    "rust-analyzer"
    "rustc"
    "rustfmt"
    "shellcheck"
    "skopeo"
  ] hosts;
in
pkgs
