package telemetry

import (
	"fmt"
	"strings"
)

// exporterChoice is what the environment asks for.
type exporterChoice uint8

const (
	exportNothing exporterChoice = iota
	exportOTLP
	exportConsole
)

// chooseExporter reads the variables that decide whether and how spans leave the process.
// As the OpenTelemetry specification says, an empty variable is an unset one.
func chooseExporter(getenv func(string) string) (exporterChoice, error) {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return exportNothing, nil
	}
	switch name := getenv("OTEL_TRACES_EXPORTER"); name {
	case "none":
		return exportNothing, nil
	case "otlp":
		return exportOTLP, nil
	case "console":
		return exportConsole, nil
	case "":
	default:
		return exportNothing, fmt.Errorf(`OTEL_TRACES_EXPORTER=%q: must be "otlp", "console" or "none"`, name)
	}
	if getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		return exportOTLP, nil
	}
	return exportNothing, nil
}
