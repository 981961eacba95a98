{
  description = "foo-controller: its static binary, the image around it, and what must hold of both";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      manifest = lib.importTOML ./Cargo.toml;
      inherit (manifest.package) name version description;
      inherit (manifest.workspace.package) license;

      forSystems =
        f: lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: f nixpkgs.legacyPackages.${system});

      # Cargo reads the manifests of all crates, and the sources only of those that it compiles.
      manifests = [
        ./Cargo.toml
        ./Cargo.lock
        (lib.fileset.fileFilter (file: file.name == "Cargo.toml") ./crates)
        ./tests/simulation/Cargo.toml
        ./xtask/Cargo.toml
      ];
      # Sources of the program. A change of any other file rebuilds nothing.
      sources = manifests ++ [
        ./src
        ./crates/runtime
      ];
      only =
        files:
        lib.fileset.toSource {
          root = ./.;
          fileset = lib.fileset.unions files;
        };

      crate =
        rustPlatform: args:
        rustPlatform.buildRustPackage (
          {
            pname = name;
            inherit version;
            src = only sources;
            cargoLock.lockFile = ./Cargo.lock;
            # Embeds the list of crates into the program, for vulnerability scanners.
            auditable = true;
            # Tests are separate checks.
            doCheck = false;
          }
          // args
        );

      # Only the manifests of the sources.
      skeletonOf =
        pkgs:
        pkgs.runCommand "source" { } ''
          cp -r ${only manifests} $out
          chmod -R u+w $out
          for manifest in $(find $out -name Cargo.toml); do
            mkdir -p ''${manifest%/*}/src
            touch ''${manifest%/*}/src/lib.rs
            echo 'fn main() {}' > ''${manifest%/*}/src/main.rs
            mkdir -p ''${manifest%/*}/examples
            for example in $(sed -n '/^\[\[example]]/{n;s/^name = "\(.*\)"/\1/p}' $manifest); do
              echo 'fn main() {}' > ''${manifest%/*}/examples/$example.rs
            done
          done
        '';

      # Only the dependencies, compiled for empty crates.
      dependenciesOf =
        pkgs: rustPlatform: args:
        crate rustPlatform (
          {
            pname = "${name}-dependencies";
            src = skeletonOf pkgs;
            installPhase = "mv target $out";
            # Only cargo reads the output, and checks each file in it.
            dontFixup = true;
          }
          // args
        );

      # Starts a build with the compiled dependencies. Cargo compares timestamps: compiled files must be newer than the sources
      # of the dependencies, and older than ours.
      beginWith = dependencies: ''
        cp -r ${dependencies} target
        chmod -R u+w target
        touch compiled
        find target -exec touch --no-dereference --reference compiled {} +
        find . -path ./target -prune -o -type f -exec touch {} +
      '';

      # The commit is written into the linked program, so that a commit without a source change compiles nothing. Always 40
      # characters.
      commit =
        self.rev or (if self ? dirtyRev then lib.substring 0 34 self.dirtyRev + "-dirty" else null);
      expected = "${name} ${version}" + lib.optionalString (commit != null) " (${commit})";

      # Licences of the crates in the program. They must accompany it: as a file beside it.
      noticesOf =
        pkgs: static:
        crate pkgs.rustPlatform {
          pname = "${name}-licenses";
          src = skeletonOf pkgs;
          nativeBuildInputs = [ pkgs.cargo-about ];
          buildPhase = ''
            cargo about generate --frozen --fail --target ${static.stdenv.hostPlatform.rust.rustcTarget} \
              --config ${./nix/about.toml} --output-file licenses.txt ${./nix/licenses.hbs}
          '';
          installPhase = "install -m 444 licenses.txt $out";
          dontFixup = true;
        };

      # Bill of materials of the program in CycloneDX format, from the manifests, for the target of the program.
      sbomOf =
        pkgs: static:
        crate pkgs.rustPlatform {
          pname = "${name}-sbom";
          src = skeletonOf pkgs;
          nativeBuildInputs = [ pkgs.jq ];
          buildPhase = "bash ${./nix/sbom.sh} ${static.stdenv.hostPlatform.rust.rustcTarget} > sbom.json";
          installPhase = "install -m 444 sbom.json $out";
          dontFixup = true;
        };

      # `static` is the package set that compiles the program, `pkgs` is the package set of the tools that run here.
      programOf =
        pkgs: static:
        let
          dependencies = dependenciesOf pkgs static.rustPlatform { };
          unstamped = crate static.rustPlatform {
            preConfigure = beginWith dependencies;
            # Strips all symbols. The default strips only debug symbols, and cargo is configured to strip none.
            stripAllList = [ "bin" ];
          };
        in
        pkgs.runCommand "${name}-program-${version}"
          {
            nativeBuildInputs = [ pkgs.nukeReferences ];
            # It runs where there is no Nix store.
            allowedReferences = [ ];
            passthru = { inherit dependencies unstamped; };
            meta = {
              inherit description;
              mainProgram = name;
            };
          }
          ''
            install -D ${unstamped}/bin/${name} $out/bin/${name}
            nuke-refs $out/bin/${name}
            ${lib.optionalString (commit != null) "bash ${./nix/stamp.sh} $out/bin/${name} ${commit}"}
            install -D -m 444 ${noticesOf pkgs static} $out/share/doc/${name}/licenses.txt
          '';

      # The program with its completions and manual page. The image contains only the program, and no shell.
      packageOf =
        pkgs: static:
        let
          program = programOf pkgs static;
        in
        pkgs.runCommand "${name}-${version}"
          {
            allowedReferences = [ ];
            passthru = {
              inherit program;
              inherit (program) dependencies unstamped;
            };
            inherit (program) meta;
          }
          ''
            install -D ${lib.getExe program} $out/bin/${name}
            ln -s ${name} $out/bin/kubectl-foo # `kubectl foo doctor`
            install -D -m 444 ${program}/share/doc/${name}/licenses.txt $out/share/doc/${name}/licenses.txt
            install -D -m 444 ${./nix/share/completion.bash} $out/share/bash-completion/completions/${name}
            install -D -m 444 ${./nix/share/completion.fish} $out/share/fish/vendor_completions.d/${name}.fish
            install -D -m 444 ${./nix/share/completion.zsh} $out/share/zsh/site-functions/_${name}
            install -D -m 444 ${./nix/share/man.1} $out/share/man/man1/${name}.1
          '';

      # Certificate authorities that the program trusts by default: Mozilla's. They are a separate file: they are updated with
      # nixpkgs, can be inspected in the image, and can be replaced with SSL_CERT_FILE.
      authoritiesOf =
        pkgs: pkgs.runCommand "ca-bundle.crt" { } "cp ${pkgs.cacert}/etc/ssl/certs/ca-bundle.crt $out";

      imageOf = pkgs: static: {
        inherit name;
        tag = version;
        created = "1970-01-01T00:00:00Z";
        architecture = static.stdenv.hostPlatform.go.GOARCH;
        config = {
          Entrypoint = [ (lib.getExe (programOf pkgs static)) ];
          Env = [ "SSL_CERT_FILE=${authoritiesOf pkgs}" ];
          User = "65532:65532";
          Labels = {
            "org.opencontainers.image.title" = name;
            "org.opencontainers.image.description" = description;
            "org.opencontainers.image.licenses" = license;
            "org.opencontainers.image.version" = version;
          }
          // lib.optionalAttrs (commit != null) { "org.opencontainers.image.revision" = commit; };
        };
      };
      # Uncompressed: containerd, and therefore kind, does not unpack a compressed archive.
      archiveOf =
        pkgs: static: pkgs.dockerTools.buildLayeredImage (imageOf pkgs static // { compressor = "none"; });
    in
    {
      packages = forSystems (
        pkgs:
        rec {
          default = packageOf pkgs pkgs.pkgsStatic;
          image = archiveOf pkgs pkgs.pkgsStatic;
          image-stream = pkgs.dockerTools.streamLayeredImage (imageOf pkgs pkgs.pkgsStatic);
          sbom = sbomOf pkgs pkgs.pkgsStatic;
          crds = pkgs.runCommand "crd.yaml" { } "${lib.getExe default} crd > $out";
        }
        // lib.optionalAttrs (pkgs.stdenv.hostPlatform.system == "x86_64-linux") {
          image-arm64 = archiveOf pkgs pkgs.pkgsCross.aarch64-multiplatform.pkgsStatic;
          sbom-arm64 = sbomOf pkgs pkgs.pkgsCross.aarch64-multiplatform.pkgsStatic;
        }
      );

      apps = forSystems (
        pkgs:
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
          crds =
            app "exec ${lib.getExe packages.default} crd" [ ]
              "Print the CustomResourceDefinition of Foo";
          push =
            app
              ''
                [ $# -ge 1 ] || { echo "usage: nix run .#push -- REGISTRY/NAME:TAG [OPTION OF skopeo copy...]" >&2; exit 2; }
                exec ${./deploy/push.sh} "$1" ${packages.image} ${packages.image-arm64 or ""} -- "''${@:2}"
              ''
              [ pkgs.jq pkgs.skopeo ]
              "Push the images of all architectures to a registry, as an index of them";
        }
      );

      checks = forSystems (
        pkgs:
        let
          packages = self.packages.${pkgs.stdenv.hostPlatform.system};
        in
        # Checks of the shipped outputs. `make test` runs the checks that need only cargo.
        {
          inherit (packages) default;
          crd = pkgs.runCommand "crd" { } "diff ${./deploy/crd.yaml} ${packages.crds} && touch $out";
          image =
            pkgs.runCommand "image"
              {
                nativeBuildInputs = [
                  pkgs.curl
                  pkgs.jq
                  pkgs.prometheus.cli
                  pkgs.rust-audit-info
                ];
              }
              ''
                program=${lib.getExe packages.default.program} authorities=${authoritiesOf pkgs}
                [ "$($program --version)" = "${expected}" ]

                [ "$(gzip < ${packages.image} | wc -c)" -le 12000000 ]
                tar xf ${packages.image}
                jq -e '.[0].RepoTags == ["${name}:${version}"]' manifest.json
                jq -e --arg program "$program" --arg authorities "$authorities" '
                  .architecture == "${pkgs.stdenv.hostPlatform.go.GOARCH}" and .os == "linux" and (.created | startswith("1970-01-01T00:00:00"))
                  and .config.Entrypoint == [$program] and .config.User == "65532:65532"
                  and .config.Env == ["SSL_CERT_FILE=" + $authorities]
                  and (.config.Labels | all(type == "string"))
                  and .config.Labels["org.opencontainers.image.version"] == "${version}"
                  and .config.Labels["org.opencontainers.image.revision"] == ${builtins.toJSON commit}
                ' "$(jq -r '.[0].Config' manifest.json)"

                # The program, its licences and the authorities are the only files. The program contains no store path.
                jq -r '.[0].Layers[]' manifest.json | while read -r layer; do tar tf "$layer"; done | sed 's,^\.*/,,' | grep '[^/]$' | sort > files
                licenses=''${program%/bin/*}/share/doc/${name}/licenses.txt
                printf '%s\n' "''${program#/}" "''${licenses#/}" "''${authorities#/}" | sort | diff - files
                # (nuke-refs leaves e's, which no store path contains.)
                if grep -aEo '${builtins.storeDir}/[0-9a-df-np-sv-z]{32}-' $program; then exit 1; fi

                [ "$(grep -c 'BEGIN CERTIFICATE' $authorities)" -ge 100 ]
                grep 'Mozilla Public License 2.0' $licenses

                # The crates embedded in the program include all of the bill of materials, and the licence file lists each of
                # these, too.
                for layer in $(jq -r '.[0].Layers[]' manifest.json); do tar xf "$layer"; done
                rust-audit-info "''${program#/}" | jq -r '.packages[] | .name + " " + .version' | sort > listed
                jq -r '.components[] | .name + " " + .version' ${packages.sbom} | sort > crates
                [ "$(wc -l < crates)" -ge 100 ]
                comm -13 listed crates | diff /dev/null -
                sed -n 's/^  //p' "''${licenses#/}" | sort -u > licensed
                comm -13 licensed crates | diff /dev/null -

                # The program works although its https telemetry endpoint is unreachable, and exits on SIGTERM. Its metrics
                # are well formed, and their histogram bounds are the same as in the program that cargo built.
                look() { # program
                  env -i HOME="$PWD" SSL_CERT_FILE=$authorities "$1" run --master http://127.0.0.1:1 --leader-election=false \
                    --http-addr 127.0.0.1:8080 --otlp-endpoint https://127.0.0.1:1 2> log &
                  curl --silent --fail --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:8080/metrics > metrics || { cat log; exit 1; }
                  kill %% && wait %% || { cat log; exit 1; }
                  promtool check metrics < metrics
                  grep -o 'le="[^"]*"' metrics | sort | uniq -c
                }
                look ${packages.default.unstamped}/bin/${name} > expected
                look $program > bounds
                diff expected bounds
                cp bounds $out
              '';
        }
      );

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
            nixfmt
            shellcheck
            skopeo
          ];
          env.RUST_SRC_PATH = pkgs.rustPlatform.rustLibSrc;
        };
      });

      formatter = forSystems (
        pkgs:
        pkgs.writeShellApplication {
          name = "fmt";
          runtimeInputs = [
            pkgs.git
            pkgs.nixfmt
          ];
          # Without arguments, formats all Nix files of the project: nixfmt accepts no folder.
          text = ''
            [ $# -gt 0 ] || mapfile -t -d "" -- files < <(git ls-files -z -- '*.nix')
            exec nixfmt "''${@:-"''${files[@]}"}"
          '';
        }
      );
    };
}
