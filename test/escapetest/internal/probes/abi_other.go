//go:build linux && !amd64

package probes

import "github.com/toolfleet/toolfleet/test/escapetest/internal/canary"

func int80(canary.Host) canary.Verdict { return unsupported("only on amd64") }

func x32(canary.Host) canary.Verdict { return unsupported("only on amd64") }
