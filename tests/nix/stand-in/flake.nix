{
  description = "Stand-in for nixpkgs where it cannot be reached: the names that this project's flake uses, built with the host's tools";

  outputs =
    _:
    let
      lib = import ./lib.nix;
    in
    {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (
        system: import ./. { inherit system; }
      );
    };
}
