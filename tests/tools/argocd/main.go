// argocd prints Argo CD's health of each JSON object on standard input: the status, a colon, the message. The argument is the file
// with the Lua script.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/argoproj/argo-cd/v3/util/lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func run() error {
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	objects := json.NewDecoder(os.Stdin)
	for {
		// The API machinery decodes numbers in its own way.
		var raw json.RawMessage
		if err := objects.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			return err
		}
		health, err := lua.VM{}.ExecuteHealthLua(object, string(script))
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", health.Status, health.Message)
	}
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "argocd-health:", err)
		os.Exit(1)
	}
}
