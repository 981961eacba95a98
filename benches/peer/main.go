// The operator that foo-controller is measured against: the same Foos, on controller-runtime, as its users write one.
// Typed objects, cached reads, writes only where something changed, the client's rate limit lifted; everything else as the
// library has it, or, with -tuned, as those set it who know it well.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

const image = "nginx:latest"

type reconciler struct {
	client.Client
	events  events.EventRecorder
	secrets bool
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var foo Foo
	if err := r.Get(ctx, request.NamespacedName, &foo); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !foo.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if r.secrets {
		var secret corev1.Secret
		if err := r.Get(ctx, request.NamespacedName, &secret); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}

	deployment := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: foo.Namespace, Name: foo.Spec.DeploymentName}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, &deployment, func() error { return r.shape(&foo, &deployment) })
	if err != nil {
		return ctrl.Result{}, err
	}

	status := foo.Status.DeepCopy()
	setStatus(&foo, &deployment)
	if !equality.Semantic.DeepEqual(status, &foo.Status) {
		if err := r.Status().Update(ctx, &foo); err != nil {
			return ctrl.Result{}, err
		}
	}
	if done != controllerutil.OperationResultNone {
		log.FromContext(ctx).Info("synced the Deployment", "deployment", deployment.Name, "result", done)
		r.events.Eventf(&foo, nil, corev1.EventTypeNormal, "Synced", "Reconcile", "Foo synced successfully")
	}
	return ctrl.Result{}, nil
}

// What the Foo says of its Deployment; the rest of the Deployment is left as it is.
func (r *reconciler) shape(foo *Foo, deployment *appsv1.Deployment) error {
	labels := map[string]string{"app": "nginx", "controller": foo.Name}
	if deployment.CreationTimestamp.IsZero() {
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	}
	deployment.Labels = merged(deployment.Labels, labels)
	template := &deployment.Spec.Template
	template.Labels = merged(template.Labels, labels)
	if len(template.Spec.Containers) == 0 {
		template.Spec.Containers = []corev1.Container{{Name: "nginx"}}
	}
	template.Spec.Containers[0].Image = image
	if foo.Spec.Replicas != nil {
		deployment.Spec.Replicas = foo.Spec.Replicas
	}
	return controllerutil.SetControllerReference(foo, deployment, r.Scheme())
}

func merged(into, labels map[string]string) map[string]string {
	if into == nil {
		into = map[string]string{}
	}
	for key, value := range labels {
		into[key] = value
	}
	return into
}

func setStatus(foo *Foo, deployment *appsv1.Deployment) {
	replicas := int32(1)
	if deployment.Spec.Replicas != nil {
		replicas = *deployment.Spec.Replicas
	}
	now := deployment.Status
	foo.Status.ObservedGeneration = foo.Generation
	foo.Status.AvailableReplicas = now.AvailableReplicas
	foo.Status.Replicas = now.Replicas
	foo.Status.DeploymentName = deployment.Name
	foo.Status.Selector = metav1.FormatLabelSelector(deployment.Spec.Selector)

	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "DeploymentProgressing", ObservedGeneration: foo.Generation,
		Message: fmt.Sprintf("Deployment %q has %d of %d replicas available", deployment.Name, now.AvailableReplicas, replicas)}
	progressing := ready
	progressing.Type, progressing.Status = "Progressing", metav1.ConditionTrue
	if now.ObservedGeneration >= deployment.Generation && now.UpdatedReplicas >= replicas && now.Replicas <= now.UpdatedReplicas && now.AvailableReplicas >= replicas {
		ready.Status, ready.Reason = metav1.ConditionTrue, "DeploymentAvailable"
		progressing.Status, progressing.Reason = metav1.ConditionFalse, "DeploymentComplete"
	}
	meta.SetStatusCondition(&foo.Status.Conditions, ready)
	meta.SetStatusCondition(&foo.Status.Conditions, progressing)
}

func run() error {
	workers := flag.Int("workers", 1, "how many Foos are reconciled at once")
	resync := flag.Duration("resync", 10*time.Hour, "how often every Foo is resynced")
	tuned := flag.Bool("tuned", false, "with what controller-runtime has for those who need speed and memory")
	secrets := flag.Bool("secrets", false, "read the Secret of each Foo's name")
	flag.Parse()
	ctrl.SetLogger(zap.New())

	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addToScheme(scheme)
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // no limit
	caches := cache.Options{SyncPeriod: resync}
	var foos []builder.ForOption
	var deployments []builder.OwnsOption
	if *tuned {
		// Half of what is kept of an object otherwise.
		caches.DefaultTransform = cache.TransformStripManagedFields()
		// A status that was written asks for nothing.
		foos = append(foos, builder.WithPredicates(predicate.GenerationChangedPredicate{}))
		// Nor does what it has just created, or a resync: every Foo is listed when it starts.
		ours := predicate.Funcs{CreateFunc: func(event.CreateEvent) bool { return false }}
		deployments = append(deployments, builder.WithPredicates(predicate.ResourceVersionChangedPredicate{}, ours))
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         caches,
		Metrics:                       server.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "foo-controller",
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	reconciler := &reconciler{manager.GetClient(), manager.GetEventRecorder("sample-controller"), *secrets}
	err = ctrl.NewControllerManagedBy(manager).
		For(&Foo{}, foos...).
		Owns(&appsv1.Deployment{}, deployments...).
		// Warm: a standby fills its caches and its queue before it leads.
		WithOptions(controller.Options{MaxConcurrentReconciles: *workers, EnableWarmup: tuned}).
		Complete(reconciler)
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
