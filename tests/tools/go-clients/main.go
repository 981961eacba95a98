// go-clients runs clients of client-go and controller-runtime against the API server of KUBECONFIG: `elect NAME` takes part in an
// election, `inform` prints the events of an informer, and `manage` runs a manager with a controller. It ends with SIGTERM. `fields`
// prints the fields of the objects that such clients send in protobuf.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Times of an election, which are short for tests.
const (
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

func main() {
	if os.Args[1] == "fields" {
		printFields()
		return
	}
	commands := map[string]func(context.Context, *rest.Config, []string) error{
		"elect": elect, "inform": inform, "manage": manage,
	}
	config, err := ctrl.GetConfig()
	if err == nil {
		err = commands[os.Args[1]](ctrl.SetupSignalHandler(), config, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-clients:", err)
		os.Exit(1)
	}
}
