// kstatus prints the status that kstatus computes for each JSON object on standard input: the status, a colon, its message. It
// fails if kstatus and its fork, which Flux and Helm 4 use, disagree.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	fork "github.com/fluxcd/cli-utils/pkg/kstatus/status"
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
		var other *fork.Result
		if err == nil {
			other, err = fork.Compute(object)
		}
		if err == nil && other.Status.String() != result.Status.String() {
			err = fmt.Errorf("%s: %s, but the fork computes %s: %s", result.Status, result.Message, other.Status, other.Message)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "kstatus:", err)
			os.Exit(1)
		}
		fmt.Printf("%s: %s\n", result.Status, result.Message)
	}
}
