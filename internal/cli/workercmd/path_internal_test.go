package workercmd

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

func TestWithPath_WhatSandboxesHave(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("UNSUPPORTED HERE: sandboxes isolate on Linux alone")
	}
	secret := t.TempDir()
	path := "/usr/bin:" + secret + ":/usr/nowhere:relative"
	isolating := isolation.Caps{Driver: "ns", Level: isolation.LevelFull}
	require.Equal(t, map[string]string{"A": "b", "PATH": "/usr/bin"}, withPath(map[string]string{"A": "b"}, path, isolating))
	require.Equal(t, map[string]string{"PATH": "/usr/bin"}, withPath(nil, path, isolating))
	require.Equal(t, map[string]string{"PATH": "/x"}, withPath(map[string]string{"PATH": "/x"}, path, isolating))
	require.Equal(t, path, withPath(nil, path, isolation.Caps{Driver: "process"})["PATH"], "commands there see the host as it is")
}
