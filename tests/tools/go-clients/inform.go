package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// inform prints the events of an informer for ConfigMaps.
func inform(ctx context.Context, config *rest.Config, _ []string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	print := func(event string, object any) {
		if config, is := object.(*corev1.ConfigMap); is {
			fmt.Println(event, config.Name, config.Data["text"])
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace("default"))
	informer := factory.Core().V1().ConfigMaps().Informer()
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { print("added", object) },
		UpdateFunc: func(_, object any) { print("updated", object) },
		DeleteFunc: func(object any) {
			if unknown, is := object.(cache.DeletedFinalStateUnknown); is {
				object = unknown.Obj
			}
			print("deleted", object)
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		fmt.Println("synced")
	}
	<-ctx.Done()
	return nil
}
