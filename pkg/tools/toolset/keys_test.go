package toolset_test

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// planned returns the call that a tool of the core toolset makes of a path.
func planned(t require.TestingT, table *tools.Table, toolName, path string) protocol.Call {
	_, plan, err := table.Plan(scope, toolName, argumentsFor(t, toolName, path))
	require.Nil(t, err, "%s %q", toolName, path)
	call, err := plan.Call(scope, tools.Place{ID: "c", Turn: 1, Step: 1}, "", toolName, time.Unix(0, 0))
	require.Nil(t, err, "%s %q", toolName, path)
	return call
}

func TestCore_WhatConflicts(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	readOnly := func(toolName string) protocol.Call {
		raw := map[string]string{"bash": `{"command":"ls","read_only":true}`, "run_code": `{"code":"1","read_only":true}`}[toolName]
		_, plan, err := table.Plan(scope, toolName, raw)
		require.Nil(t, err)
		call, err := plan.Call(scope, tools.Place{ID: "c", Turn: 1, Step: 1}, "", toolName, time.Unix(0, 0))
		require.Nil(t, err)
		return call
	}
	for name, test := range map[string]struct {
		first, second string // tool and path
		conflict      bool
	}{
		"two reads of a file":                     {"read a", "read a", false},
		"read and write of a file":                {"read a", "write a", true},
		"two writes of a file":                    {"write a", "write a", true},
		"edit and read of a file":                 {"edit a", "read a", true},
		"edits of two files":                      {"edit a", "edit b", false},
		"names that begin alike":                  {"write a", "write ab", false},
		"one file in two spellings":               {"write ./x/../a", "read /workspace/a", true},
		"a write and the listing of its folder":   {"write a/b.txt", "list a", true},
		"a write and the listing above":           {"write a/b/c.txt", "list .", true},
		"a write and the listing beside it":       {"write a/b.txt", "list c", false},
		"a write and a search above":              {"write a/b.txt", "grep .", true},
		"a write and a search of another file":    {"write a/b.txt", "grep a/c.txt", false},
		"a write that makes a folder, and exists": {"write new/x", "exists new", true},
		"two writes into one new folder":          {"write new/x", "write new/y", false},
		"a file, and a file below that name":      {"write a", "write a/b", true},
		"a listing and a search":                  {"list .", "grep .", false},
		"a write and a glob above":                {"write a/b.txt", "glob .", true},
		"a write and a tree above":                {"json_write a/b.txt", "tree a", true},
		"a glob, a tree and a listing":            {"glob .", "tree .", false},
		"two places of one document":              {"json_write a", "json_write ./a", true},
		"a JSON read and a read":                  {"json_read a", "read a", false},
		"several edits and a JSON read":           {"multi_edit a", "json_read a", true},
		"four edits of one file":                  {"edit a.txt", "edit ./a.txt", true},
		"a command and a read":                    {"bash .", "read a", true},
		"a command elsewhere and a read":          {"bash x", "read a", true},
		"two commands":                            {"bash .", "bash .", true},
		"a command and a program":                 {"bash .", "run_code .", true},
		"a program and a listing":                 {"run_code .", "list a", true},
		"two commands that change nothing":        {"bash !", "bash !", false},
		"such a command and such a program":       {"bash !", "run_code !", false},
		"such a command and a read":               {"bash !", "read a", false},
		"such a command and a write":              {"bash !", "write a", true},
		"such a command and any other":            {"bash !", "bash .", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := func(s string) protocol.Call {
				toolName, path, _ := strings.Cut(s, " ")
				if path == "!" {
					return readOnly(toolName)
				}
				return planned(t, table, toolName, path)
			}
			first, second := call(test.first), call(test.second)
			require.Equal(t, test.conflict, first.ConflictsWith(&second))
			require.Equal(t, test.conflict, second.ConflictsWith(&first))
			require.Equal(t, first.Lane(), second.Lane())
		})
	}
}

func TestCore_SandboxesAreLanesOfTheirOwn(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	_, plan, err := table.Plan(tools.Scope{Session: "s", Sandbox: "other"}, "write", argumentsFor(t, "write", "a"))
	require.Nil(t, err)
	require.Equal(t, use("sandbox/other/a", protocol.Exclusive), plan.Resources)
}

// spelling draws another way to write a canonical path.
func spelling(t *rapid.T, canonical string) string {
	var b strings.Builder
	b.WriteString(rapid.SampledFrom([]string{"", "./", "/workspace/", "//workspace//", "/x/../workspace/", "x/../", "/../workspace/./"}).Draw(t, "start"))
	for i, segment := range strings.Split(canonical, "/") {
		if i > 0 {
			b.WriteString(rapid.SampledFrom([]string{"/", "//", "/./", "/x/../", "/x/y/../../"}).Draw(t, "between"))
		}
		b.WriteString(segment)
	}
	return b.String()
}

func TestKeys_OneFileHasOneKeyHoweverItIsSpelled(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	segment := rapid.StringMatching(`[a-zA-Z0-9 _é$*\\-]{1,8}|\.[a-z]{1,3}|\.\.\.`)
	rapid.Check(t, func(t *rapid.T) {
		canonical := strings.Join(rapid.SliceOfN(segment, 1, 5).Draw(t, "segments"), "/")
		toolName := rapid.SampledFrom([]string{
			"read", "write", "edit", "multi_edit", "json_read", "json_write", "list", "tree", "glob", "exists", "grep",
		}).Draw(t, "tool")
		plain, spelled := planned(t, table, toolName, canonical), planned(t, table, toolName, spelling(t, canonical))
		require.Equal(t, plain, spelled)
		require.Equal(t, protocol.ResourceKey("sandbox/box/"+canonical), plain.Resources[0].Key)
	})
}

func TestKeys_EveryAcceptedPathStaysInside(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	piece := rapid.SampledFrom([]string{"..", ".", "/", "a", "workspace", "/workspace", "\\", "", "é", " "})
	rapid.Check(t, func(t *rapid.T) {
		raw := strings.Join(rapid.SliceOfN(piece, 0, 8).Draw(t, "pieces"), "/")
		_, plan, err := table.Plan(scope, "exists", argumentsFor(t, "exists", raw))
		if err != nil {
			require.Contains(t, []protocol.Code{codes.PathEscape, codes.InvalidPath}, err.Code)
			return
		}
		payload, ok := plan.Payload.(protocol.FilesExists)
		require.True(t, ok)
		require.False(t, path.IsAbs(payload.Path))
		require.NotContains(t, strings.Split(payload.Path, "/"), "..")
		require.True(t, payload.Path == "" || path.Clean(payload.Path) == payload.Path)
		require.True(t, protocol.SandboxKey("box").Contains(plan.Resources[0].Key))
	})
}

func TestKeys_VeryLongPathsGetABroaderKey(t *testing.T) {
	t.Parallel()
	table := coreTable(t)
	long := strings.Repeat("directory/", 400) + "file"
	call := planned(t, table, "write", long)
	require.LessOrEqual(t, len(call.Resources[0].Key), 1024)
	require.Equal(t, protocol.FilesWrite{Path: long, Content: protocol.Bytes("x")}, call.Payload)
	same := planned(t, table, "read", "./"+long)
	require.True(t, call.ConflictsWith(&same))

	single := planned(t, table, "write", strings.Repeat("x", 4000))
	require.Equal(t, protocol.SandboxKey("box"), single.Resources[0].Key)
}
