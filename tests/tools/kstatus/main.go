// kstatus prints, for each object that stdin has as JSON, how kstatus (Flux, Helm) judges it: its word, a colon, its message.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	objects := json.NewDecoder(os.Stdin)
	for {
		// The API machinery decodes numbers in its own way.
		var raw json.RawMessage
		err := objects.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return
		}
		object := &unstructured.Unstructured{}
		if err == nil {
			err = object.UnmarshalJSON(raw)
		}
		var result *status.Result
		if err == nil {
			result, err = status.Compute(object)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "kstatus:", err)
			os.Exit(1)
		}
		fmt.Printf("%s: %s\n", result.Status, result.Message)
	}
}
