package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// sent has the objects that clients send to the API server in memory.
var sent = []any{
	appsv1.Deployment{}, authenticationv1.TokenReview{}, authorizationv1.SelfSubjectAccessReview{},
	authorizationv1.SubjectAccessReview{}, autoscalingv1.Scale{}, batchv1.Job{}, coordinationv1.Lease{}, corev1.ConfigMap{},
	corev1.Event{}, corev1.Namespace{}, corev1.Secret{}, corev1.Service{}, corev1.ServiceAccount{}, eventsv1.Event{},
	metav1.DeleteOptions{},
}

// special has the types whose JSON is no object of their fields.
var special = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():                 "time",
	reflect.TypeFor[metav1.MicroTime]():            "microTime",
	reflect.TypeFor[intstr.IntOrString]():          "intOrString",
	reflect.TypeFor[resource.Quantity]():           "quantity",
	reflect.TypeFor[runtime.RawExtension]():        "raw",
	reflect.TypeFor[metav1.FieldsV1]():             "raw",
	reflect.TypeFor[authenticationv1.ExtraValue](): "strings",
	reflect.TypeFor[authorizationv1.ExtraValue]():  "strings",
}

// printFields prints the messages of protobuf that are in the sent objects: a line with the name of the message, and for each field
// its name in JSON, its number and its type. `*` is a list, `%` a map, `?` a pointer, and `~` a message whose fields belong to the
// outer one.
func printFields() {
	lines := map[string]string{}
	var typeName func(reflect.Type) string
	message := func(of reflect.Type) string {
		path := strings.Split(of.PkgPath(), "/")
		name := strings.Join(path[len(path)-2:], "/") + "." + of.Name()
		if _, known := lines[name]; known {
			return name
		}
		lines[name] = ""
		line := name
		for field := range of.NumField() {
			field, mark := of.Field(field), ""
			tag, of := strings.Split(field.Tag.Get("protobuf"), ","), field.Type
			if len(tag) < 2 {
				continue // The version and kind of the object, which are not in the message.
			}
			json, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if json == "" { // Inlined.
				json, mark = field.Name, "~"
			}
			if of.Kind() == reflect.Pointer {
				of, mark = of.Elem(), mark+"?"
			}
			line += fmt.Sprintf(" %s=%s:%s%s", json, tag[1], mark, typeName(of))
		}
		lines[name] = line
		return name
	}
	typeName = func(of reflect.Type) string {
		if name, is := special[of]; is {
			return name
		}
		switch of.Kind() {
		case reflect.String:
			return "string"
		case reflect.Int32, reflect.Int64:
			return "int"
		case reflect.Bool:
			return "bool"
		case reflect.Map:
			return "%" + typeName(of.Elem())
		case reflect.Slice:
			if of.Elem().Kind() == reflect.Uint8 {
				return "bytes"
			}
			return "*" + typeName(of.Elem())
		case reflect.Struct:
			return message(of)
		}
		panic(of)
	}
	for _, object := range sent {
		message(reflect.TypeOf(object))
	}
	all := make([]string, 0, len(lines))
	for _, line := range lines {
		all = append(all, line)
	}
	slices.Sort(all)
	fmt.Println(strings.Join(all, "\n"))
}
