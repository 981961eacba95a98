// The OpenTelemetry Collector with the few parts that the tests and the demo use; collector.yaml says what it does with
// them. Written by hand rather than by the collector's builder, whose "go mod tidy" wants modules that only tests import.
package main

import (
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/debugexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/batchprocessor"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Description: "what tests and demo send telemetry to"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory(), envprovider.NewFactory()},
		}},
	}
	if otelcol.NewCommand(settings).Execute() != nil {
		os.Exit(1) // the command has said why
	}
}

func factories() (otelcol.Factories, error) {
	return otelcol.Factories{
		Telemetry:  otelconftelemetry.NewFactory(),
		Receivers:  byType[receiver.Factory](otlpreceiver.NewFactory()),
		Processors: byType[processor.Factory](memorylimiterprocessor.NewFactory(), batchprocessor.NewFactory()),
		Exporters:  byType[exporter.Factory](debugexporter.NewFactory(), fileexporter.NewFactory()),
	}, nil
}

func byType[F component.Factory](factories ...F) map[component.Type]F {
	all := map[component.Type]F{}
	for _, factory := range factories {
		all[factory.Type()] = factory
	}
	return all
}
