//go:build linux

package escapetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
	"github.com/toolfleet/toolfleet/test/escapetest/internal/probes"
)

// lacks tries every feature of the host, each in a process of its own, which the host may kill for
// it. It returns the probes that can find nothing here, with the reason.
func lacks(t *testing.T, h canary.Host, program string) map[string]string {
	t.Helper()
	dir := directory(t)
	describe(t, h, dir)
	without := map[string]string{}
	for feature, names := range probes.Features() {
		v := hasFeature(t, program, dir, feature)
		if v.Outcome == canary.Works {
			continue
		}
		t.Logf("UNSUPPORTED: this host lacks %s: %s", feature, v.Detail)
		for _, name := range names {
			without[name] = feature + ": " + v.Detail
		}
	}
	return without
}

// hasFeature tries one feature in a directory that has a description of the host.
func hasFeature(t *testing.T, program, dir, feature string) canary.Verdict {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "host", feature)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return canary.Verdict{Outcome: canary.Refused, Detail: err.Error()}
	}
	var v canary.Verdict
	require.NoError(t, json.Unmarshal(out, &v), "%s: %s", feature, out)
	return v
}

// describe writes the description of the host that probes read.
func describe(t *testing.T, h canary.Host, dir string) {
	t.Helper()
	data, err := json.Marshal(h)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, canary.File), data, 0o644))
}
