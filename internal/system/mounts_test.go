package system_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system"
)

func TestParseMounts(t *testing.T) {
	t.Parallel()
	all, err := system.ParseMounts("31 24 0:26 /a\\040b /c\\040d\\011\\012\\134 rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw\n" +
		"24 1 0:20 / /proc ro - proc proc rw\n")
	require.NoError(t, err)
	require.Equal(t, []system.Mount{
		{ID: "31", Parent: "24", Root: "/a b", Point: "/c d\t\n\\", Options: "rw,nosuid", Peers: []string{"shared:9", "master:1"}, Type: "cgroup2"},
		{ID: "24", Parent: "1", Root: "/", Point: "/proc", Options: "ro", Peers: []string{}, Type: "proc"},
	}, all)
}

func TestParseMounts_RefusesOtherForms(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"x\n", "24 1 0:20 / /proc rw\n", "24 1 0:20 / /proc - proc\n", "24 1 0:20 / /proc rw -\n"} {
		_, err := system.ParseMounts(table)
		require.ErrorContains(t, err, "mountinfo: ", table)
	}
}

func TestParseMounts_ReadsThatOfThisMachine(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if os.IsNotExist(err) {
		t.Skip("NOT TESTED: this system has no /proc/self/mountinfo")
	}
	require.NoError(t, err)
	all, err := system.ParseMounts(string(table))
	require.NoError(t, err)
	require.NotEmpty(t, all)
}

func TestWithin(t *testing.T) {
	t.Parallel()
	for _, in := range [][2]string{{"a", "a"}, {"a", "a/b/c"}, {"/", "/"}, {"/", "/a"}, {"/a", "/a/..b"}, {"", "a"}, {".", "a/b"}, {"", ""}} {
		require.True(t, system.Within(in[0], in[1]), in)
	}
	for _, out := range [][2]string{{"a", "ab"}, {"a/b", "a"}, {"/a", "/"}, {"/a", "/ab"}, {"/a", "a"}, {"a", "/a"}, {"a", ""}, {"", ".."}, {"a", "../a"}} {
		require.False(t, system.Within(out[0], out[1]), out)
	}
}
