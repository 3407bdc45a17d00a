package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Coordinator and worker run as the user, outside of sandboxes, beside files that a session wrote.
// No program may run there on such files, or because of them; git parses copies of single files
// (internal/inplace/gitguard/ask.go). No file of a session's is opened in a way that waits, has an
// effect or has no bound: package regular opens them, or what is said here does.

// use is how many calls a file has, and why no session can make use of them.
type use struct {
	calls int
	why   string
}

// started are the calls that start a program, by their files.
var started = map[string]use{
	"cmd/coordinator/settings.go":                {1, "this program itself, to complete a command line"},
	"cmd/coordinator/ui.go":                      {1, "the browser that the user names by BROWSER, or that of the system, with an address of this process"},
	"cmd/coordinator/internal/bench/baseline.go": {1, "an empty shell command, to compare with"},
	"internal/inplace/gitguard/ask.go":           {1, "git, in a directory of its own, on copies of single files, without settings of anybody's"},
	"internal/inplace/hostenv/credentials.go": {
		2, "git credential, in /, in no repository, with a PATH without the workspace; ssh-keygen, on the user's known_hosts; not one of the workspace",
	},
	"internal/natsio/shared/shared.go":        {1, "this program itself, as the server of the user's sessions"},
	"internal/sandbox/ns/launcher.go":         {2, "bubblewrap, which makes a sandbox; this program's own, which makes a sandbox"},
	"internal/sandbox/process/sandbox.go":     {1, "a command, with --sandbox process: without isolation, as the user has asked for"},
	"internal/sandbox/process/tree_linux.go":  {1, "this program's own, which ends commands"},
	"internal/session/hooks/shell_unix.go":    {1, "a program of the file that the user names by --hooks, in the directory of the file"},
	"internal/session/hooks/shell_windows.go": {1, "a program of the file that the user names by --hooks, in the directory of the file"},
}

// What a file opens.
const (
	own    = "files that only these programs write"
	system = "files of the system"
	named  = "a file or directory that the user names, or made for this"
	list   = "directories only: opening one never waits, whatever is there"
	root   = "a directory, in which package regular or snapshot opens files"
	never  = "what a session wrote, by descriptor, without waiting, compared with what was seen"
)

// opened are the calls that open a path without package regular, by their files.
var opened = map[string]use{
	"cmd/coordinator/tools.go":                          {1, list},
	"cmd/coordinator/continue.go":                       {1, own},
	"cmd/coordinator/turn.go":                           {1, root},
	"cmd/coordinator/acp.go":                            {1, root},
	"internal/acp/updates.go":                           {1, root},
	"internal/cli/contexts.go":                          {1, own},
	"internal/cli/doctor/host.go":                       {2, system},
	"internal/cli/environment/branch.go":                {1, named},
	"internal/cli/environment/environment.go":           {1, list},
	"internal/cli/environment/local.go":                 {4, own + "; " + list},
	"internal/cli/environment/toolbox.go":               {4, root + "; " + list},
	"internal/cli/environment/workspace.go":             {1, root},
	"internal/cli/trust.go":                             {1, list},
	"internal/inplace/gitguard/aside.go":                {8, root + "; " + list + "; new files"},
	"internal/inplace/gitguard/copies.go":               {3, root},
	"internal/inplace/gitguard/find.go":                 {2, list},
	"internal/inplace/gitguard/record.go":               {1, list},
	"internal/inplace/gitguard/watch.go":                {1, list},
	"internal/inplace/hostenv/cache.go":                 {7, list},
	"internal/inplace/hostenv/toolchains.go":            {1, list},
	"internal/inplace/hostenv/view.go":                  {2, list},
	"internal/inplace/queue.go":                         {2, own + "; " + list},
	"internal/natsio/embedded/failed.go":                {1, own},
	"internal/telemetry/tracefile.go":                   {1, named + ", by --trace-file: only one that has spans, or nothing yet"},
	"internal/natsio/embedded/joined.go":                {1, own + "; " + list},
	"internal/natsio/embedded/server.go":                {1, named},
	"internal/natsio/shared/process_unix.go":            {1, system},
	"internal/natsio/shared/serve.go":                   {1, own},
	"internal/natsio/shared/shared.go":                  {1, own},
	"internal/sandbox/files/fault.go":                   {1, never},
	"internal/sandbox/files/files.go":                   {1, root},
	"internal/sandbox/files/open.go":                    {2, never},
	"internal/sandbox/files/walk.go":                    {1, never},
	"internal/sandbox/internal/cgroup/group.go":         {8, system},
	"internal/sandbox/internal/cgroup/location.go":      {2, system},
	"internal/sandbox/internal/confine/caps.go":         {1, system},
	"internal/sandbox/internal/image/image.go":          {1, own},
	"internal/sandbox/internal/initd/guard.go":          {3, system},
	"internal/sandbox/internal/initd/launch.go":         {1, "inside of the sandbox"},
	"internal/sandbox/internal/initd/limits.go":         {4, system},
	"internal/sandbox/internal/initd/owner.go":          {1, "inside of the sandbox"},
	"internal/sandbox/internal/initd/selftest.go":       {6, "inside of the sandbox"},
	"internal/sandbox/internal/initd/serve.go":          {1, system},
	"internal/sandbox/internal/initd/watch.go":          {4, list + "; " + system},
	"internal/sandbox/internal/start/terminal_linux.go": {1, system},
	"internal/sandbox/internal/supervisor/scratch.go":   {2, own},
	"internal/sandbox/ns/network.go":                    {1, system},
	"internal/sandbox/ns/protected.go":                  {3, root},
	"internal/sandbox/process/tree_linux.go":            {1, own},
	"internal/sandbox/snapshot/open.go":                 {2, never},
	"internal/sandbox/snapshot/local.go":                {2, root + "; " + list},
	"internal/sandbox/snapshot/restore.go":              {2, root + "; new files"},
	"internal/sandbox/snapshot/save.go":                 {1, list},
	"internal/sandbox/snapshot/tree.go":                 {1, own},
	"internal/session/index/index.go":                   {1, own},
	"internal/system/files.go":                          {1, "new files"},
	"internal/system/regular/regular.go":                {3, never},
	"internal/system/remove.go":                         {1, list},
	"internal/system/remove_linux.go":                   {4, list},
	"internal/terminal/prompt/editor.go":                {3, root + "; " + list},
	"internal/terminal/prompt/prompt.go":                {1, root},
	"internal/worker/checkpoint/commit.go":              {1, root},
	"internal/worker/checkpoint/directory.go":           {5, root + "; " + own},
	"internal/worker/kinds/workspace.go":                {3, root},
	"internal/worker/sandboxes/cache.go":                {2, own + "; " + system},
	"internal/worker/sandboxes/lane.go":                 {3, list},
	"internal/workspace/backup/backup.go":               {5, root + "; " + own},
	"internal/workspace/backup/stamps.go":               {3, root + "; " + list},
	"internal/workspace/transfer/base.go":               {2, own},
	"internal/workspace/transfer/pull.go":               {1, list},
	"internal/workspace/transfer/transfer.go":           {2, root},
	"pkg/fleet/schedules.go":                            {1, root},
	"pkg/tools/manifest/folder.go":                      {2, root + "; " + list},
	"internal/webui/page.go":                            {1, "templates, which are a part of this program"},
}

var (
	starts = regexp.MustCompile(`\b(?:exec\.Command(?:Context)?|os\.StartProcess|(?:syscall|unix)\.(?:ForkExec|Exec))\(|\bexec\.Cmd\{`)
	opens  = regexp.MustCompile(`\bos\.(?:Open|OpenFile|ReadFile|OpenRoot|ReadDir|DirFS)\(|\b(?:filepath|fs)\.(?:WalkDir|Walk|ReadFile|ReadDir|Glob)\(` +
		`|(?:[rR]oot|\bdir|hooks|below|scratch)\.(?:Open|OpenFile|OpenRoot|ReadFile|FS)\(|\b(?:unix|syscall)\.Open(?:at2?)?\(`)
	comments = regexp.MustCompile(`(?m)^\s*//.*$`)
)

// TestHostile_WhatIsStartedAndOpenedIsListed: a new place that starts a program or opens a path has
// to say why a session cannot use it.
func TestHostile_WhatIsStartedAndOpenedIsListed(t *testing.T) {
	t.Parallel()
	starting, opening := map[string]int{}, map[string]int{}
	base := os.DirFS("../..")
	for _, top := range []string{"cmd", "internal", "pkg"} {
		require.NoError(t, fs.WalkDir(base, top, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && strings.HasSuffix(entry.Name(), "test") { // helpers of tests
				return fs.SkipDir
			}
			if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			content, err := fs.ReadFile(base, name)
			content = comments.ReplaceAll(content, nil)
			if n := len(starts.FindAllIndex(content, -1)); n > 0 {
				starting[name] = n
			}
			if n := len(opens.FindAllIndex(content, -1)); n > 0 {
				opening[name] = n
			}
			return err
		}))
	}
	const advice = "%s has %d calls that %s, and %d are listed: use package regular or internal/inplace/gitguard, or say in test/docs/hostile_test.go why no session can use them"
	compare := func(does string, listed map[string]use, found map[string]int) {
		for name, n := range found {
			if listed[name].calls != n {
				t.Errorf(advice, name, n, does, listed[name].calls)
			}
		}
		for name := range listed {
			if found[name] == 0 {
				t.Errorf("%s has no calls that %s any more: take it off the list", name, does)
			}
		}
	}
	compare("start a program", started, starting)
	compare("open a path", opened, opening)
}
