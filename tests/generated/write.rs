//! Writes the generated files; `make generate` calls it.

#[path = "mod.rs"]
mod generated;

fn main() -> std::io::Result<()> {
    for (path, text) in generated::files() {
        // Leave current files untouched: the defaults are compiled in, and a new timestamp would cause a rebuild.
        if std::fs::read_to_string(&path)? != text {
            std::fs::write(path, text)?;
        }
    }
    Ok(())
}
