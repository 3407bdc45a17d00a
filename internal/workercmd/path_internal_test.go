package workercmd

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestWithPath_WhatSandboxesHave(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("UNSUPPORTED HERE: sandboxes isolate on Linux alone")
	}
	secret := t.TempDir()
	path := "/usr/bin:" + secret + ":/usr/nowhere:relative"
	isolating := sandbox.Caps{Driver: "ns", Level: sandbox.LevelFull}
	require.Equal(t, map[string]string{"A": "b", "PATH": "/usr/bin"}, withPath(map[string]string{"A": "b"}, path, isolating))
	require.Equal(t, map[string]string{"PATH": "/usr/bin"}, withPath(nil, path, isolating))
	require.Equal(t, map[string]string{"PATH": "/x"}, withPath(map[string]string{"PATH": "/x"}, path, isolating))
	require.Equal(t, path, withPath(nil, path, sandbox.Caps{Driver: "process"})["PATH"], "commands there see the host as it is")
}
