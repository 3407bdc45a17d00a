package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Names of exporters, as the OTEL_*_EXPORTER variables spell them; exportNothing is
// also what an empty environment asks for.
const (
	exportNothing    = "none"
	exportOTLP       = "otlp"
	exportConsole    = "console"
	exportPrometheus = "prometheus"
)

// choice is what the environment asks for: an exporter for each signal.
type choice struct {
	traces, metrics string
}

// chooseExporters reads the variables that decide whether and how telemetry leaves the process.
// As the OpenTelemetry specification says, an empty variable is an unset one.
func chooseExporters(getenv func(string) string) (choice, error) {
	nothing := choice{traces: exportNothing, metrics: exportNothing}
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return nothing, nil
	}
	traces, tracesErr := chooseExporter(getenv, "TRACES", exportOTLP, exportConsole, exportNothing)
	metrics, metricsErr := chooseExporter(getenv, "METRICS", exportOTLP, exportPrometheus, exportConsole, exportNothing)
	if tracesErr != nil && metricsErr != nil && tracesErr.Error() == metricsErr.Error() { // of a variable for both
		metricsErr = nil
	}
	if err := errors.Join(tracesErr, metricsErr); err != nil {
		return nothing, err
	}
	if metrics == exportPrometheus {
		if err := checkPort(getenv); err != nil {
			return nothing, err
		}
	}
	return choice{traces: traces, metrics: metrics}, nil
}

// chooseExporter reads the variables of one signal.
func chooseExporter(getenv func(string) string, signal string, allowed ...string) (string, error) {
	name := "OTEL_" + signal + "_EXPORTER"
	chosen := getenv(name)
	switch {
	case chosen == "" && getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") == "":
		return exportNothing, nil
	case chosen == "":
		chosen = exportOTLP
	case !slices.Contains(allowed, chosen):
		return "", fmt.Errorf("%s=%q: must be %s", name, chosen, oneOf(allowed))
	}
	if chosen == exportOTLP {
		return chosen, cmp.Or(checkProtocol(getenv, "OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), checkEndpoint(getenv, "OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"))
	}
	return chosen, nil
}

// checkProtocol refuses a transport that there is no exporter for.
func checkProtocol(getenv func(string) string, ofSignal string) error {
	allowed := []string{"grpc", "http/protobuf"}
	for _, name := range []string{ofSignal, "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if value := getenv(name); value != "" {
			if !slices.Contains(allowed, value) {
				return fmt.Errorf("%s=%q: must be %s", name, value, oneOf(allowed))
			}
			return nil // the signal's own wins
		}
	}
	return nil
}

// checkEndpoint refuses what is no URL, for which an exporter takes its default.
func checkEndpoint(getenv func(string) string, ofSignal string) error {
	for _, name := range []string{ofSignal, "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		value := getenv(name)
		if value == "" {
			continue
		}
		where, err := url.Parse(value)
		if err != nil || where.Scheme != "unix" && (where.Host == "" || where.Scheme != "http" && where.Scheme != "https") {
			return fmt.Errorf("%s=%q: must be a URL, as in http://localhost:4318", name, value)
		}
		return nil // the signal's own wins
	}
	return nil
}

// checkPort refuses a port at which nobody could find the metrics.
func checkPort(getenv func(string) string) error {
	const name = "OTEL_EXPORTER_PROMETHEUS_PORT"
	value := getenv(name)
	if value == "" {
		return nil
	}
	if port, err := strconv.ParseUint(value, 10, 16); err != nil || port == 0 {
		return fmt.Errorf("%s=%q: must be 1 to 65535", name, value)
	}
	return nil
}

// oneOf lists words for an error: "a", "b" or "c".
func oneOf(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}
