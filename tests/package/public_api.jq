# Lists the public items of a crate from rustdoc's JSON (format 57), one a line: kind and path, and the traits of each type.
.index as $all
| def item($id; $parent; $name):
    $all[$id | tostring] // empty
    | .visibility as $visibility
    | (.inner | keys[0]) as $kind
    | .inner[$kind] as $inner
    | (if $parent == "" then $name else "\($parent)::\($name)" end) as $path
    | def children: $all[tostring] // empty | item(.id; $path; .name);
      def impls:
        $inner.impls[] | $all[tostring] // empty | .inner.impl | select(.is_synthetic == false and .blanket_impl == null)
        | if .trait then "impl \($path): \(.trait.path)" else .items[] | children end;
      if $kind == "use" then
        if $inner.is_glob then $all[$inner.id | tostring].inner.module.items[] | $all[tostring] | item(.id; $parent; .name)
        elif $all[$inner.id | tostring] then item($inner.id; $parent; $inner.name)
        else "use \($path) = \($inner.source)" end
      elif $kind == "variant" or $kind == "struct_field" or $visibility == "public" or $visibility == "default" then
        "\($kind) \($path)",
        if $kind == "module" then $inner.items[] | children
        elif $kind == "trait" then $inner.items[] | children
        elif $kind == "struct" then
          ($inner.kind | objects | (.plain.fields // .tuple)[] | values | children), impls
        elif $kind == "enum" then ($inner.variants[] | children), impls
        else empty end
      else empty end;
  item(.root; ""; $all[.root | tostring].name)
