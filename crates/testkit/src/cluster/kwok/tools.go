//go:build tools

// Package tools pins kwok in a module of its own: in one module it would raise what Kubernetes is built with.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
