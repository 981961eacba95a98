package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Foo, with the code that kubebuilder generates for a type: deploy/crd.yaml says what its fields mean.
type Foo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              FooSpec   `json:"spec"`
	Status            FooStatus `json:"status,omitempty"`
}

type FooSpec struct {
	DeploymentName string `json:"deploymentName"`
	Replicas       *int32 `json:"replicas,omitempty"`
}

type FooStatus struct {
	AvailableReplicas  int32              `json:"availableReplicas"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Replicas           int32              `json:"replicas"`
	Selector           string             `json:"selector,omitempty"`
	DeploymentName     string             `json:"deploymentName,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type FooList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Foo `json:"items"`
}

func addToScheme(scheme *runtime.Scheme) {
	version := schema.GroupVersion{Group: "samplecontroller.k8s.io", Version: "v1alpha1"}
	scheme.AddKnownTypes(version, &Foo{}, &FooList{})
	metav1.AddToGroupVersion(scheme, version)
}

func (in *Foo) DeepCopyInto(out *Foo) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Spec.Replicas != nil {
		out.Spec.Replicas = new(int32)
		*out.Spec.Replicas = *in.Spec.Replicas
	}
	out.Status = *in.Status.DeepCopy()
}

func (in *Foo) DeepCopyObject() runtime.Object {
	out := new(Foo)
	in.DeepCopyInto(out)
	return out
}

func (in *FooStatus) DeepCopy() *FooStatus {
	out := *in
	if in.Conditions != nil {
		out.Conditions = make([]metav1.Condition, len(in.Conditions))
		for i := range in.Conditions {
			in.Conditions[i].DeepCopyInto(&out.Conditions[i])
		}
	}
	return &out
}

func (in *FooList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]Foo, len(in.Items))
		for i := range in.Items {
			in.Items[i].DeepCopyInto(&out.Items[i])
		}
	}
	return &out
}
