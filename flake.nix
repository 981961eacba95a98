{
  description = "foo-controller: its static binary, the image around it, and what must hold of both";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      inherit ((lib.importTOML ./Cargo.toml).package) name version description license;

      forSystems = f: lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: f nixpkgs.legacyPackages.${system});

      # What the program is made of: an edit of anything else rebuilds nothing.
      sources = [ ./Cargo.toml ./Cargo.lock ./src ./config/foo-controller.toml ];
      only = files: lib.fileset.toSource { root = ./.; fileset = lib.fileset.unions files; };

      crate = rustPlatform: args: rustPlatform.buildRustPackage ({
        pname = name;
        inherit version;
        src = only sources;
        cargoLock.lockFile = ./Cargo.lock;
      } // args);

      # The commit is written over these zeros once the program is linked: a commit that changes no source rebuilds nothing
      # either. Hence always 40 characters.
      noCommit = "0000000000000000000000000000000000000000";
      commit = self.rev or (if self ? dirtyRev then lib.substring 0 34 self.dirtyRev + "-dirty" else noCommit);

      # `static` is the package set that the program is compiled with, `pkgs` the one whose tools run here.
      programOf = pkgs: static:
        let
          unstamped = crate static.rustPlatform {
            env.FOO_CONTROLLER_COMMIT = noCommit;
            # checks.tests runs them, without the minutes of a release build.
            doCheck = false;
          };
        in
        pkgs.runCommand "${name}-${version}"
          {
            nativeBuildInputs = [ pkgs.nukeReferences ];
            # It runs where there is no store.
            allowedReferences = [ ];
            passthru = { inherit unstamped; };
            meta = { inherit description; mainProgram = name; };
          }
          ''
            install -D ${unstamped}/bin/${name} $out/bin/${name}
            nuke-refs $out/bin/${name}
            LC_ALL=C sed -i s/${noCommit}/${commit}/ $out/bin/${name}
          '';

      imageOf = pkgs: static: {
        inherit name;
        tag = version;
        created = "1970-01-01T00:00:00Z";
        architecture = static.stdenv.hostPlatform.go.GOARCH;
        config = {
          Entrypoint = [ (lib.getExe (programOf pkgs static)) ];
          User = "65532:65532";
          Labels = {
            "org.opencontainers.image.title" = name;
            "org.opencontainers.image.description" = description;
            "org.opencontainers.image.licenses" = license;
            "org.opencontainers.image.version" = version;
            "org.opencontainers.image.revision" = commit;
          };
        };
      };
      # Plain: containerd, and with it kind, unpacks no compressed archive.
      archiveOf = pkgs: static: pkgs.dockerTools.buildLayeredImage (imageOf pkgs static // { compressor = "none"; });
    in
    {
      packages = forSystems (pkgs: rec {
        default = programOf pkgs pkgs.pkgsStatic;
        image = archiveOf pkgs pkgs.pkgsStatic;
        image-stream = pkgs.dockerTools.streamLayeredImage (imageOf pkgs pkgs.pkgsStatic);
        crds = pkgs.runCommand "crd.yaml" { } "${lib.getExe default} crd > $out";
      } // lib.optionalAttrs (pkgs.stdenv.hostPlatform.system == "x86_64-linux") {
        image-arm64 = archiveOf pkgs pkgs.pkgsCross.aarch64-multiplatform.pkgsStatic;
      });

      apps = forSystems (pkgs:
        let
          packages = self.packages.${pkgs.stdenv.hostPlatform.system};
          app = text: runtimeInputs: about: {
            type = "app";
            program = lib.getExe (pkgs.writeShellApplication { inherit name text runtimeInputs; });
            meta.description = about;
          };
        in
        {
          default = app ''exec ${lib.getExe packages.default} "$@"'' [ ] description;
          crds = app "exec ${lib.getExe packages.default} crd" [ ] "Print the CustomResourceDefinition of Foo";
          push = app
            ''
              [ $# -ge 1 ] || { echo "usage: nix run .#push -- REGISTRY/NAME:TAG [OPTION OF skopeo copy...]" >&2; exit 2; }
              exec ${./deploy/push.sh} "$1" ${packages.image} ${packages.image-arm64 or ""} -- "''${@:2}"
            ''
            [ pkgs.jq pkgs.skopeo ] "Push the images of all architectures to a registry, as an index of them";
        });

      checks = forSystems (pkgs:
        let
          packages = self.packages.${pkgs.stdenv.hostPlatform.system};
          cargo = pname: tools: files: command: crate pkgs.rustPlatform {
            inherit pname;
            src = only (sources ++ files);
            nativeBuildInputs = tools;
            buildPhase = "cargo ${command}";
            doCheck = false;
            installPhase = "touch $out";
          };
          # YAML, too: some tests include it.
          code = map (lib.fileset.fileFilter (file: file.hasExt "rs" || file.hasExt "yaml")) [ ./benches ./tests ];
        in
        {
          inherit (packages) default;
          # The test that reads the README is left to `make test`.
          tests = cargo "tests" [ ] [ ] "test --frozen --lib -- --skip readme";
          clippy = cargo "clippy" [ pkgs.clippy ] code "clippy --all-targets --frozen -- -D warnings";
          fmt = cargo "fmt" [ pkgs.rustfmt ] code "fmt --check";
          deny = cargo "deny" [ pkgs.cargo-deny ] [ ./deny.toml ] "deny --frozen check bans licenses sources";
          crd = pkgs.runCommand "crd" { } "diff ${./deploy/crd.yaml} ${packages.crds} && touch $out";
          image = pkgs.runCommand "image" { nativeBuildInputs = [ pkgs.jq ]; } ''
            program=${lib.getExe packages.default}
            [ "$($program --version)" = "${name} ${version} (${commit})" ]

            [ "$(gzip < ${packages.image} | wc -c)" -le 12000000 ]
            tar xf ${packages.image}
            jq -e '.[0].RepoTags == ["${name}:${version}"]' manifest.json
            jq -e --arg program "$program" '
              .architecture == "${pkgs.stdenv.hostPlatform.go.GOARCH}" and .os == "linux" and (.created | startswith("1970-01-01T00:00:00"))
              and .config.Entrypoint == [$program] and .config.User == "65532:65532"
              and .config.Labels["org.opencontainers.image.version"] == "${version}"
              and .config.Labels["org.opencontainers.image.revision"] == "${commit}"
            ' "$(jq -r '.[0].Config' manifest.json)"

            # The program is the only file, and names no store path.
            jq -r '.[0].Layers[]' manifest.json | while read -r layer; do tar tf "$layer"; done | sed 's,^\.*/,,' | grep '[^/]$' > files
            echo "''${program#/}" | diff - files
            # (nuke-refs leaves e's, which no store path has.)
            if grep -aEo '${builtins.storeDir}/[0-9a-df-np-sv-z]{32}-' $program; then exit 1; fi
            touch $out
          '';
        });

      devShells = forSystems (pkgs: {
        default = pkgs.mkShell {
          packages = with pkgs; [
            cargo
            cargo-deny
            clippy
            rust-analyzer
            rustc
            rustfmt
            curl
            go
            jq
            kubectl
            kustomize
            deadnix
            nixpkgs-fmt
            shellcheck
            skopeo
          ];
          env.RUST_SRC_PATH = pkgs.rustPlatform.rustLibSrc;
        };
      });

      formatter = forSystems (pkgs: pkgs.writeShellApplication {
        name = "fmt";
        runtimeInputs = [ pkgs.nixpkgs-fmt ];
        text = ''exec nixpkgs-fmt "''${@:-.}"'';
      });
    };
}
