package manifest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// A manifest of kind mcp is what a file of servers is, with the same fields.
func TestParseServer_IsAServerOfAFile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ manifest, file string }{
		"a program": {
			`kind: mcp
name: s
command: npx
args: [-y, "@modelcontextprotocol/server-filesystem", .]
env: {TOKEN: "${TOKEN}", NUMBER: 7}
cwd: sub
workspace: false
only: [read_file, write_file]
tools:
  read_file:
    resources:
      - key: sandbox/{$sandbox}/{path...}
        access: shared
    delivery: idempotent
    timeout: 30s
  write_file:
    resources: []
    revert: {tool: remove_file, arguments: {path: "{path}", how: [{deep: true}]}}
timeout: 2m
pool: gpu
min_level: paths
`,
			`{"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."], "env": {"TOKEN": "${TOKEN}", "NUMBER": "7"},
				"cwd": "sub", "toolfleet": {"workspace": false, "only": ["read_file", "write_file"], "tools": {
					"read_file": {"resources": [{"key": "sandbox/{$sandbox}/{path...}", "access": "shared"}], "delivery": "idempotent", "timeout": "30s"},
					"write_file": {"resources": [], "revert": {"tool": "remove_file", "arguments": {"path": "{path}", "how": [{"deep": true}]}}}
				}, "timeout": "2m", "pool": "gpu", "min_level": "paths"}}`,
		},
		"a URL": {
			"kind: mcp\nname: s\nurl: https://example.com/mcp\nheaders: {Authorization: \"Bearer ${TOKEN}\"}\n",
			`{"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}`,
		},
		"a URL of a login": {
			"kind: mcp\nname: s\nurl: https://example.com/mcp\noauth: {clientId: https://example.com/me.json, scopes: [read, write], callbackPort: 8123}\n",
			`{"url": "https://example.com/mcp", "oauth": {"clientId": "https://example.com/me.json", "scopes": "read write", "callbackPort": 8123, "authServerMetadataUrl": "https://example.com"}}`,
		},
		"a client": {
			"kind: mcp\nname: s\nurl: https://example.com/mcp\noauth: {grantType: client_credentials, clientId: me, clientSecret: \"${SECRET}\", scopes: [read]}\n",
			`{"url": "https://example.com/mcp", "oauth": {"grantType": "client_credentials", "clientId": "me", "clientSecret": "${SECRET}", "scopes": ["read"]}}`,
		},
		"JSON": {`{"kind": "mcp", "name": "s", "command": "s"}`, `{"command": "s"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, problems := manifest.ParseServer("s.yaml", []byte(test.manifest))
			require.Empty(t, problems)
			servers, faults := mcp.Parse([]byte(`{"mcpServers": {"s": ` + test.file + `}}`))
			require.Empty(t, faults)
			require.Equal(t, servers[0], server)
		})
	}
}

// Everything that is wrong is told at once, each with the line of its place.
func TestParseServer_EveryFaultHasTheLineOfItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content string
		want    []string
	}{
		"what its fields say": {`kind: mcp
name: a__b
command: x
url: ftp://example.com
env:
  GOOD: "1"
  "A=B": "1"
headers: {A: b}
only: []
tools:
  a/b:
    delivery: twice
    timeout: 5
  r:
    revert:
      arguments: {a: {1: 2}}
  x:
    resources:
      - key: sandbox/a
      - key: sandbox/{$sandbox}/{path...}/x
      - {key: "sandbox/{$sandbox}", access: reed}
    timeout: 30h
timeout: soon
pool: session
min_level: high
`, []string{
			`f:2: name "a__b": must be 1 to 40 of a-z, A-Z, 0-9, '_' and '-', without "__"`,
			`f:4: exactly one of command (a program) and url must be given`,
			`f:4: url "ftp://...": must begin with http:// or https://`,
			`f:4: args, env and cwd are of programs, not of a url`,
			`f:7: env "A=B": a name must not be empty or contain "=", and nothing may contain a NUL byte`,
			`f:9: only: must name a tool; without it all are offered`,
			`f:12: tool a/b: delivery "twice": must be "idempotent", "at_most_once" or "rollback"`,
			`f:13: tool a/b: timeout "5": must be a time such as 90s or 2m`,
			`f:16: tool r: revert: tool: missing`,
			`f:16: tool r: revert: arguments: must be a JSON object: json: unsupported type: map[interface {}]interface {}`,
			`f:19: tool x: invalid resource "sandbox/a": a tool uses the sandbox of its own session only: sandbox/{$sandbox}`,
			`f:20: tool x: invalid resource "sandbox/{$sandbox}/{path...}/x": {path...}: a path must be the last segment, behind the two of the lane`,
			`f:21: tool x: invalid resource "sandbox/{$sandbox}": access "reed": must be "shared" or "exclusive"`,
			`f:22: tool x: timeout 30h0m0s: must be 0 to 24h0m0s`,
			`f:23: timeout "soon": must be a time such as 90s or 2m`,
			`f:24: pool "session": is that of the coordinators`,
			`f:25: min_level "high": must be one of none, paths, full, kernel`,
		}},
		"logins": {`kind: mcp
name: s
command: s
oauth:
  grantType: password
  scopes: [a b]
`, []string{
			`f:5: oauth is of a url, not of a program`,
			`f:5: oauth: grantType "password": must be authorization_code (a person logs in) or client_credentials`,
			`f:6: oauth: scope "a b": must be of printable ASCII without spaces, '"' and '\'`,
		}},
		"a login of a person": {`kind: mcp
name: s
url: https://example.com/mcp
headers: {authorization: Bearer x}
oauth:
  clientSecret: hush
  callbackPort: 65536
`, []string{
			`f:6: oauth and the header authorization: only one of them can say who comes`,
			`f:6: oauth: clientSecret without clientId`,
			`f:7: oauth: callbackPort 65536: must be 1 to 65535`,
		}},
		"a client": {`kind: mcp
name: s
url: https://example.com/mcp
oauth:
  grantType: client_credentials
  clientSecret: hush
  callbackPort: 80
`, []string{
			`f:5: oauth: clientId is missing, which client_credentials needs`,
			`f:6: oauth: clientSecret must be a variable of the worker, as ${NAME}: what is written out would travel`,
			`f:7: oauth: callbackPort is of authorization_code`,
		}},
		"fields that are none": {`kind: mcp
name: s
command: [npx, -y]
description: Does.
tools:
  x: {colour: red, revert: {tool: y, kay: a}}
  y:
    resources: [{kay: a}]
workspace: perhaps
`, []string{
			`f:3: a list is not what belongs here: it must be a text`,
			`f:4: there is no field "description"; the fields are kind, name, command, args, env, cwd, url, headers, oauth, workspace, only, tools, timeout, pool, min_level`,
			`f:6: there is no field "colour"; the fields are resources, delivery, timeout, revert`,
			`f:6: there is no field "kay"; the fields are tool, arguments`,
			`f:8: there is no field "kay"; the fields are key, access`,
			"f:9: `perhaps` is not what belongs here: it must be true or false",
		}},
		"mappings that are none": {"kind: mcp\nname: s\ncommand: x\ntools: [x]\nenv: [x]\nonly:\n", []string{
			`f:4: a list is not what belongs here: it must be a mapping of fields`,
			`f:5: a list is not what belongs here: it must be a mapping of names to texts`,
			`f:6: only: must name a tool; without it all are offered`,
		}},
		"nothing": {"kind: mcp\n", []string{
			`f:1: name "": must be 1 to 40 of a-z, A-Z, 0-9, '_' and '-', without "__"`,
			`f:1: exactly one of command (a program) and url must be given`,
		}},
		"a tool": {"name: s\ncommand: x\n", []string{`f:1: kind "": must be mcp`}},
		"no mapping": {
			"- a\n",
			[]string{`f:1: must be a mapping with the fields kind, name, command, args, env, cwd, url, headers, oauth, workspace, only, tools, timeout, pool, min_level`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, problems := manifest.ParseServer("f", []byte(test.content))
			all := make([]string, 0, len(problems))
			for _, p := range problems {
				all = append(all, p.Error())
			}
			require.Equal(t, test.want, all)
		})
	}
	_, problems := manifest.Parse("f", []byte("name: a\ndescription: A.\ncommand: [a]\nkind: tool\n"))
	require.Len(t, problems, 1)
	require.Equal(t, `f:4: kind "tool": must be mcp; a manifest without it is that of a tool`, problems[0].Error())
}

// A folder has servers beside tools: each name once, a broken one as it was.
func TestFolder_Servers(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	served := func(set manifest.Set) []string {
		out := []string{}
		for _, server := range set.Servers {
			out = append(out, server.Name+" "+server.Command)
		}
		return out
	}
	server := func(name, command string) string { return "kind: mcp\nname: " + name + "\ncommand: " + command + "\n" }
	f.tool("fs") // whose name has nothing to do with those of a server's tools
	f.write("a.yaml", server("fs", "one"))
	f.write("b.json", `{"kind": "mcp", "name": "taken", "command": "two"}`)
	f.write("c.yaml", server("fs", "three"))
	set := f.Load("bash", "taken__")
	require.Equal(t, []string{"fs"}, names(set))
	require.Equal(t, []string{"fs one"}, served(set))
	require.Equal(t, []string{
		"b.json:1: the name taken is that of a server of --mcp-config: choose another",
		"c.yaml:2: the name fs is that of the MCP server of a.yaml: choose another",
	}, problems(set))

	require.NoError(t, os.Remove(filepath.Join(f.Dir(), "c.yaml")))
	f.write("a.yaml", server("fs", "one")+"timout: 3s\n")
	set = f.Load()
	require.Equal(t, []string{"fs one", "taken two"}, served(set))
	require.Contains(t, problems(set)[0], `a.yaml:4: there is no field "timout"`)
	require.Equal(t, "a.yaml: the MCP server fs stays as it was before", problems(set)[1])

	f.write("a.yaml", "name: other\ndescription: Is a tool now.\ncommand: [\"true\"]\n")
	set = f.Load()
	require.Equal(t, []string{"other", "fs"}, names(set))
	require.Equal(t, []string{"taken two"}, served(set))
	require.Empty(t, set.Problems)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder is a folder of manifests that a test changes.
type folder struct {
	*manifest.Folder

	t *testing.T
}

func newFolder(t *testing.T) folder {
	t.Helper()
	opened, err := manifest.Open(t.TempDir())
	require.NoError(t, err)
	return folder{Folder: opened, t: t}
}

func (f folder) write(name, content string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.Dir(), name), []byte(content), 0o600))
}

func (f folder) tool(name string) {
	f.t.Helper()
	f.write(name+".yaml", "name: "+name+"\ndescription: Does "+name+".\ncommand: [\"true\"]\n")
}

func names(set manifest.Set) []string {
	out := []string{}
	for _, tool := range set.Tools {
		out = append(out, tool.Name)
	}
	return out
}

func problems(set manifest.Set) []string {
	out := []string{}
	for _, p := range set.Problems {
		out = append(out, filepath.Base(p.Error()))
	}
	return out
}

func TestFolder_FollowsItsFiles(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	require.Empty(t, f.Load().Tools)
	f.tool("b")
	f.tool("a")
	f.write("README.md", "not a manifest")
	f.write("a.py", "nor this")
	set := f.Load()
	require.Equal(t, []string{"a", "b"}, names(set))
	require.Empty(t, set.Problems)
	require.False(t, set.News)

	f.write("b.yaml", "name: c\ndescription: Other.\ncommand: [\"true\"]\n")
	require.Equal(t, []string{"a", "c"}, names(f.Load()))
	require.NoError(t, os.Remove(filepath.Join(f.Dir(), "a.yaml")))
	require.Equal(t, []string{"c"}, names(f.Load()))
}

func TestFolder_ABrokenManifestTakesNothingWithIt(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("a")
	f.tool("b")
	f.write("never.yaml", "name: never\n")
	set := f.Load()
	require.Equal(t, []string{"a", "b"}, names(set))
	require.True(t, set.News)
	require.Len(t, set.Problems, 1)
	require.Contains(t, set.Problems[0].Error(), "never.yaml")

	f.write("b.yaml", "name: b\ndescription: Does b.\ncomand: [\"true\"]\n")
	set = f.Load()
	require.Equal(t, []string{"a", "b"}, names(set), "b is as it was")
	require.True(t, set.News)
	require.Contains(t, problems(set)[0], `b.yaml:3: there is no field "comand"`)
	require.Contains(t, problems(set)[1], "b.yaml: the tool b stays as it was before")
	require.False(t, f.Load().News, "the same problems are no news")

	f.tool("b")
	require.NoError(t, os.Remove(filepath.Join(f.Dir(), "never.yaml")))
	set = f.Load()
	require.Empty(t, set.Problems)
	require.True(t, set.News, "that they are gone is")
}

func TestFolder_NamesAreTakenOnce(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("bash")
	f.tool("twin")
	f.write("x.yaml", "# the other\nname: twin\ndescription: Other.\ncommand: [\"true\"]\n")
	set := f.Load("bash", "read")
	require.Equal(t, []string{"twin"}, names(set))
	require.Equal(t, []string{
		"bash.yaml:1: the name bash is that of a built-in tool: choose another",
		"x.yaml:2: the name twin is that of the tool of twin.yaml: choose another",
	}, problems(set))
}

func TestFolder_WhatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.tool("a")
	require.NoError(t, os.Mkdir(filepath.Join(f.Dir(), "dir.yaml"), 0o700))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(f.Dir(), "dangling.yaml")))
	set := f.Load()
	require.Equal(t, []string{"a"}, names(set))
	require.Len(t, set.Problems, 2)
	require.NoError(t, os.Rename(f.Dir(), f.Dir()+".away"))
	set = f.Load()
	require.Equal(t, []string{"a"}, names(set), "what was there stays")
	require.NoError(t, os.Rename(f.Dir()+".away", f.Dir()))

	_, err := manifest.Open(filepath.Join(f.Dir(), "a.yaml"))
	require.ErrorContains(t, err, "not a directory")
	_, err = manifest.Open(filepath.Join(f.Dir(), "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
