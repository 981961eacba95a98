# The part of nixpkgs' lib that the project's flake uses.
rec {
  inherit (builtins) substring;
  genAttrs =
    names: f:
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = f name;
      }) names
    );
  optionalAttrs = condition: set: if condition then set else { };
  optional = condition: it: if condition then [ it ] else [ ];
  optionalString = condition: string: if condition then string else "";
  importTOML = path: builtins.fromTOML (builtins.readFile path);
  makeBinPath = packages: builtins.concatStringsSep ":" (map (package: "${package}/bin") packages);
  getExe = package: "${package}/bin/${package.meta.mainProgram}";
  hasPrefix = prefix: string: substring 0 (builtins.stringLength prefix) string == prefix;
  hasSuffix =
    suffix: string:
    let
      start = builtins.stringLength string - builtins.stringLength suffix;
    in
    start >= 0 && substring start (-1) string == suffix;

  # A file set is where to look and what to take there; a path stands for itself and all below it.
  fileset =
    let
      below = parent: path: path == parent || hasPrefix "${parent}/" path;
      set =
        it:
        if it ? has then
          it
        else
          {
            roots = [ (toString it) ];
            has = below (toString it);
          };
    in
    {
      unions = sets: {
        roots = builtins.concatMap (it: (set it).roots) sets;
        has = path: builtins.any (it: (set it).has path) sets;
      };
      fileFilter = f: root: {
        roots = [ (toString root) ];
        has =
          path:
          below (toString root) path
          && f {
            name = baseNameOf path;
            hasExt = extension: hasSuffix ".${extension}" path;
          };
      };
      toSource =
        { root, fileset }:
        builtins.path {
          name = "source";
          path = root;
          filter =
            path: type:
            fileset.has path
            || type == "directory" && builtins.any (it: below path it || below it path) fileset.roots;
        };
    };
}
