// Command collector is the OTLP receiver of the OpenTelemetry collector, for tests: it prints the
// spans that it gets, as JSON. Its argument is a file with the receiver's configuration. The rest
// of a collector would take longer to compile than all its tests run.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	metrics "go.opentelemetry.io/otel/metric/noop"
	traces "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var given map[string]any
	if err := json.Unmarshal(text, &given); err != nil {
		return err
	}
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	if err := confmap.NewFromStringMap(given).Unmarshal(config); err != nil {
		return err
	}
	logger, err := zap.NewProduction()
	if err != nil {
		return err
	}
	settings := receiver.Settings{
		ID: component.NewID(factory.Type()),
		TelemetrySettings: component.TelemetrySettings{
			Logger:         logger,
			TracerProvider: traces.NewTracerProvider(),
			MeterProvider:  metrics.NewMeterProvider(),
			Resource:       pcommon.NewResource(),
		},
		BuildInfo: component.NewDefaultBuildInfo(),
	}
	next, err := consumer.NewTraces(show)
	if err != nil {
		return err
	}
	server, err := factory.CreateTraces(ctx, settings, config, next)
	if err != nil {
		return err
	}
	if err := server.Start(ctx, host{}); err != nil {
		return err
	}
	fmt.Println("ready")
	<-ctx.Done()
	return server.Shutdown(context.Background())
}

func show(_ context.Context, spans ptrace.Traces) error {
	text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(spans)
	if err == nil {
		fmt.Println(string(text))
	}
	return err
}

// host has no extensions.
type host struct{}

func (host) GetExtensions() map[component.ID]component.Component { return nil }
