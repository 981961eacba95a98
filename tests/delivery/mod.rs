//! The delivered files: manifests, documentation, releases, and the image on a node.

mod manifests;
mod node;
mod release;
