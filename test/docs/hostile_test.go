package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Coordinator and worker run as the user, outside of sandboxes, beside files that a session wrote.
// No program may run there on such files, or because of them; git parses copies of single files
// (internal/gitguard/ask.go). No file of a session's is opened in a way that waits, has an effect or
// has no bound: package regular opens them, or what is said here does.

// started are the calls that start a program, by their files.
var started = map[string]string{
	"cmd/coordinator/completion.go":                    "this program itself, to complete a command line",
	"internal/bench/exec.go":                           "an empty shell command, to compare with",
	"internal/gitguard/ask.go":                         "git, in a directory of its own, on copies of single files, without settings of anybody's",
	"internal/hostenv/credentials.go":                  "git credential, in /, in no repository, with a PATH without the workspace",
	"internal/hostenv/sshagent.go":                     "ssh-keygen, on the user's known_hosts; not one of the workspace",
	"internal/sandbox/internal/guard/guard.go":         "the first program of a sandbox",
	"internal/sandbox/internal/landlockstage/stage.go": "a command, in the sandbox",
	"internal/sandbox/ns/bwrap.go":                     "bubblewrap, which makes a sandbox",
	"internal/sandbox/ns/launcher.go":                  "this program's own, which makes a sandbox",
	"internal/sandbox/process/exec.go":                 "a command, with --sandbox process: without isolation, as the user has asked for",
	"internal/sandbox/process/tree_linux.go":           "this program's own, which ends commands",
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
var opened = map[string]string{
	"cmd/coordinator/agents.go":                         list,
	"cmd/coordinator/call_batch.go":                     named,
	"cmd/coordinator/chat.go":                           own,
	"cmd/coordinator/mcp.go":                            named,
	"cmd/coordinator/serve.go":                          named,
	"cmd/coordinator/session_change.go":                 named,
	"cmd/coordinator/session_eval.go":                   named,
	"cmd/coordinator/turn.go":                           root,
	"internal/backup/backup.go":                         root,
	"internal/backup/stamps.go":                         root + "; " + list,
	"internal/cli/contexts.go":                          own,
	"internal/cli/settings.go":                          named,
	"internal/cli/trust.go":                             list,
	"internal/doctor/host.go":                           system,
	"internal/environment/branch.go":                    own,
	"internal/environment/policy.go":                    named,
	"internal/environment/sessions.go":                  own,
	"internal/environment/skills.go":                    root + "; " + list,
	"internal/environment/workspace.go":                 root + "; " + own,
	"internal/gitguard/aside.go":                        root + "; " + list + "; new files",
	"internal/gitguard/copies.go":                       root + "; " + own,
	"internal/gitguard/find.go":                         list,
	"internal/gitguard/tracked.go":                      list + "; new files",
	"internal/gitguard/watch.go":                        list,
	"internal/hostenv/cache.go":                         list,
	"internal/hostenv/mounts.go":                        list,
	"internal/hostenv/toolchains.go":                    list,
	"internal/hostenv/view.go":                          list,
	"internal/inplace/queue.go":                         own,
	"internal/model/model.go":                           named,
	"internal/model/prices.go":                          named,
	"internal/model/scripted/scripted.go":               named,
	"internal/natsio/connect.go":                        named,
	"internal/natsio/embedded/reopen.go":                own,
	"internal/natsio/embedded/server.go":                named,
	"internal/prompt/editor.go":                         root + "; " + list + "; " + own,
	"internal/prompt/prompt.go":                         root,
	"internal/regular/regular.go":                       never,
	"internal/sandbox/files/fault.go":                   never,
	"internal/sandbox/files/files.go":                   root,
	"internal/sandbox/files/list.go":                    never,
	"internal/sandbox/files/open.go":                    never,
	"internal/sandbox/files/root.go":                    never,
	"internal/sandbox/files/write.go":                   "new files",
	"internal/sandbox/internal/cgroup/group.go":         system,
	"internal/sandbox/internal/cgroup/location.go":      system,
	"internal/sandbox/internal/cgroup/tree.go":          system,
	"internal/sandbox/internal/confine/caps.go":         system,
	"internal/sandbox/internal/guard/guard.go":          system,
	"internal/sandbox/internal/image/image.go":          own,
	"internal/sandbox/internal/initd/launch.go":         "inside of the sandbox",
	"internal/sandbox/internal/initd/limits.go":         system,
	"internal/sandbox/internal/initd/owner.go":          "inside of the sandbox",
	"internal/sandbox/internal/initd/priority.go":       system,
	"internal/sandbox/internal/initd/selftest.go":       "inside of the sandbox",
	"internal/sandbox/internal/initd/selfview.go":       "inside of the sandbox",
	"internal/sandbox/internal/initd/serve.go":          system,
	"internal/sandbox/internal/initd/tree.go":           system,
	"internal/sandbox/internal/initd/watch.go":          system,
	"internal/sandbox/internal/quota/adopt.go":          never,
	"internal/sandbox/internal/quota/number.go":         own,
	"internal/sandbox/internal/quota/project.go":        list,
	"internal/sandbox/internal/quota/usable.go":         own,
	"internal/sandbox/internal/scratch/scratch.go":      own,
	"internal/sandbox/internal/start/terminal_linux.go": system,
	"internal/sandbox/internal/walk/walk.go":            list,
	"internal/sandbox/ns/dial.go":                       system,
	"internal/sandbox/ns/driver.go":                     own,
	"internal/sandbox/ns/guard.go":                      root + "; new files",
	"internal/sandbox/process/driver.go":                own,
	"internal/sandbox/process/tree_linux.go":            own,
	"internal/sandbox/removal/at_linux.go":              list,
	"internal/sandbox/removal/removal.go":               list,
	"internal/sandbox/snapshot/open.go":                 never,
	"internal/sandbox/snapshot/restore.go":              root + "; new files",
	"internal/sandbox/snapshot/save.go":                 list,
	"internal/sandbox/snapshot/tree.go":                 own,
	"internal/signing/signing.go":                       named,
	"internal/transfer/pull.go":                         list,
	"internal/transfer/transfer.go":                     root,
	"internal/worker/background/process.go":             own,
	"internal/worker/checkpoint/commit.go":              root,
	"internal/worker/checkpoint/directory.go":           root + "; " + own,
	"internal/worker/kinds/files.go":                    "a pattern in the sandbox",
	"internal/worker/kinds/fork.go":                     root,
	"internal/worker/kinds/shell.go":                    own,
	"internal/worker/kinds/workspace.go":                root,
	"internal/worker/login/store.go":                    own,
	"internal/worker/sandboxes/box.go":                  list,
	"internal/worker/sandboxes/cache.go":                own,
	"internal/worker/sandboxes/digests.go":              own,
	"internal/worker/sandboxes/memory_linux.go":         system,
	"internal/worker/sandboxes/remove.go":               system,
	"internal/worker/sandboxes/set.go":                  own,
	"internal/workercmd/login.go":                       named,
	"pkg/fleet/templates.go":                            root,
	"pkg/tools/manifest/folder.go":                      root + "; " + list,
}

var (
	starts = regexp.MustCompile(`\b(?:exec\.Command(?:Context)?|os\.StartProcess|(?:syscall|unix)\.(?:ForkExec|Exec))\(|\bexec\.Cmd\{`)
	opens  = regexp.MustCompile(`\bos\.(?:Open|OpenFile|ReadFile|OpenRoot|ReadDir|DirFS)\(|\b(?:filepath|fs)\.(?:WalkDir|Walk|ReadFile|ReadDir|Glob)\(` +
		`|(?:[rR]oot|\bdir|hooks|below|scratch)\.(?:Open|OpenFile|OpenRoot|ReadFile|FS)\(|\b(?:unix|syscall)\.Open(?:at2?)?\(`)
	comments = regexp.MustCompile(`(?m)^\s*//.*$`)
)

// TestHostile_WhatIsStartedAndOpenedIsListed: a new place that starts a program or opens a path has
// to say why a session cannot use it. Use package regular, or say it above.
func TestHostile_WhatIsStartedAndOpenedIsListed(t *testing.T) {
	t.Parallel()
	starting, opening := map[string]bool{}, map[string]bool{}
	base := os.DirFS("../..")
	for _, top := range []string{"cmd", "internal", "pkg"} {
		require.NoError(t, fs.WalkDir(base, top, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && strings.HasSuffix(entry.Name(), "test") { // helpers of tests
				return cmpOr(err, fs.SkipDir)
			}
			if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			content, err := fs.ReadFile(base, name)
			content = comments.ReplaceAll(content, nil)
			if starts.Match(content) {
				starting[name] = true
			}
			if opens.Match(content) {
				opening[name] = true
			}
			return err
		}))
	}
	require.Equal(t, slices.Sorted(maps.Keys(started)), slices.Sorted(maps.Keys(starting)))
	require.Equal(t, slices.Sorted(maps.Keys(opened)), slices.Sorted(maps.Keys(opening)))
}

// cmpOr is err, or else other.
func cmpOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
