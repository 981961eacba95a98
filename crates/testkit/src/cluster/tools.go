//go:build tools

// Package tools pins the etcd that tests and the demo run on; build.sh builds it.
package tools

import _ "go.etcd.io/etcd/server/v3"
