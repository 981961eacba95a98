package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const finalizer = "example.com/shirts"

// reconciler gives each Shirt a ConfigMap with its size, and reports the size in the status.
type reconciler struct {
	client.Client
	events events.EventRecorder
}

func shirt() *unstructured.Unstructured {
	shirt := &unstructured.Unstructured{}
	shirt.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Shirt"})
	return shirt
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	shirt := shirt()
	if err := r.Get(ctx, request.NamespacedName, shirt); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if shirt.GetDeletionTimestamp() != nil {
		if controllerutil.RemoveFinalizer(shirt, finalizer) {
			return ctrl.Result{}, r.Update(ctx, shirt)
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(shirt, finalizer) {
		return ctrl.Result{}, r.Update(ctx, shirt)
	}
	size, _, _ := unstructured.NestedString(shirt.Object, "spec", "size")
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shirt.GetNamespace(), Name: shirt.GetName()}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, config, func() error {
		config.Data = map[string]string{"size": size}
		return controllerutil.SetControllerReference(shirt, config, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if done != controllerutil.OperationResultNone {
		r.events.Eventf(shirt, config, corev1.EventTypeNormal, "Synced", "Reconcile", "the ConfigMap was %s", done)
	}
	if now, _, _ := unstructured.NestedString(shirt.Object, "status", "size"); now == size {
		return ctrl.Result{}, nil
	}
	if err := unstructured.SetNestedField(shirt.Object, size, "status", "size"); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.Status().Update(ctx, shirt)
}

// manage runs a manager with leader election.
func manage(ctx context.Context, config *rest.Config, _ []string) error {
	ctrl.SetLogger(klog.Background())
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics:                       server.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "manager",
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
	if err != nil {
		return err
	}
	reconciler := &reconciler{manager.GetClient(), manager.GetEventRecorder("manager")}
	err = ctrl.NewControllerManagedBy(manager).For(shirt()).Owns(&corev1.ConfigMap{}).Complete(reconciler)
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
