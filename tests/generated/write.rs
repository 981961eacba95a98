//! Writes what is generated; `make generate` calls it.

#[path = "mod.rs"]
mod generated;

fn main() -> std::io::Result<()> {
    for (path, text) in generated::files() {
        // What is up to date stays untouched: the defaults are compiled in.
        if std::fs::read_to_string(&path)? != text {
            std::fs::write(path, text)?;
        }
    }
    Ok(())
}
