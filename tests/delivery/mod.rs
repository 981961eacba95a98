//! What is installed: manifests, documentation, releases, the image on a node.

mod manifests;
mod node;
mod release;
