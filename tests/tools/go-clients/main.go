// go-clients runs clients of client-go and controller-runtime against the API server of KUBECONFIG: `elect NAME` takes part in an
// election, `inform` prints the events of an informer, `manage` runs a manager with a controller, and `translate` forwards requests
// of other clients, with bodies of protobuf as JSON. It ends with SIGTERM.
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
	commands := map[string]func(context.Context, *rest.Config, []string) error{
		"elect": elect, "inform": inform, "manage": manage, "translate": translate,
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
