package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// translate serves the API server without TLS, for clients whose bodies are protobuf: it forwards them as JSON. It prints its address.
func translate(ctx context.Context, config *rest.Config, _ []string) error {
	target, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	if proxy.Transport, err = rest.TransportFor(config); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", listener.Addr())
	server := &http.Server{Handler: http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if err := toJSON(request); err != nil {
			http.Error(response, err.Error(), http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(response, request)
	})}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// toJSON replaces a body of protobuf.
func toJSON(request *http.Request) error {
	if request.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return nil
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return err
	}
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	serializer, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if body, err = runtime.Encode(serializer.Serializer, object); err != nil {
		return err
	}
	request.Body, request.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	request.Header.Set("Content-Type", runtime.ContentTypeJSON)
	return nil
}
