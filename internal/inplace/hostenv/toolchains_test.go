package hostenv_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// paths is a view that hides nothing, as that of Landlock.
var paths = hostenv.ViewOf(isolation.Caps{Driver: "landlock", Level: isolation.LevelPaths})

// isolated is a view with a root of its own.
var isolated = hostenv.ViewOf(isolation.Caps{Driver: "ns", Level: isolation.LevelFull})

// shown are the parts of all toolchains, relative to the home directory.
func shown(t *testing.T, home string, f hostenv.Found) []string {
	t.Helper()
	var parts []string
	for _, m := range f.Mounts() {
		require.False(t, m.Write, m.Host)
		require.Equal(t, m.Host, m.Guest)
		parts = append(parts, strings.TrimPrefix(m.Host, home+"/"))
	}
	return parts
}

// TestFind_KnownInstallations: of each kind the parts that programs need are shown, and neither
// tokens nor settings beside them.
func TestFind_KnownInstallations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tree  []string
		links map[string]string
		path  string
		env   map[string]string // what the user has set
		shown []string
		want  map[string]string
	}{
		"rustup": {
			tree: []string{
				".cargo/bin/cargo", ".cargo/bin/rustup", ".cargo/credentials.toml", ".cargo/config.toml",
				".rustup/settings.toml", ".rustup/toolchains/stable/bin/cargo", ".rustup/tmp/",
			},
			path: ".cargo/bin", shown: []string{".cargo/bin", ".rustup/settings.toml", ".rustup/toolchains"},
			env:  map[string]string{"RUSTUP_TOOLCHAIN": "nightly"},
			want: map[string]string{"RUSTUP_HOME": "~/.rustup", "RUSTUP_TOOLCHAIN": "nightly"},
		},
		"pyenv": {
			tree: []string{
				".pyenv/libexec/pyenv", ".pyenv/shims/python3", ".pyenv/version", ".pyenv/versions/3.12/bin/python3",
				".pyenv/versions/3.12/lib/os.py", ".pyenv/versions/3.12/pip.conf", ".pyenv/.git/config",
			},
			path: ".pyenv/shims", shown: []string{".pyenv/libexec", ".pyenv/shims", ".pyenv/version", ".pyenv/versions/3.12/bin", ".pyenv/versions/3.12/lib"},
			want: map[string]string{"PYENV_ROOT": "~/.pyenv"},
		},
		"nvm": {
			tree: []string{".nvm/versions/node/v22/bin/node", ".nvm/versions/node/v22/lib/node_modules/npm/x", ".nvm/versions/node/v22/etc/npmrc", ".nvm/alias/default"},
			path: ".nvm/versions/node/v22/bin", shown: []string{".nvm/versions/node/v22/bin", ".nvm/versions/node/v22/lib"},
		},
		"sdkman, by a link": {
			tree:  []string{".sdkman/candidates/java/21/release", ".sdkman/candidates/java/21/bin/java", ".sdkman/candidates/java/21/lib/modules", ".sdkman/etc/config"},
			links: map[string]string{".sdkman/candidates/java/current": "21"},
			path:  ".sdkman/candidates/java/current/bin",
			shown: []string{".sdkman/candidates/java/21/bin", ".sdkman/candidates/java/21/lib", ".sdkman/candidates/java/21/release"},
			want:  map[string]string{"JAVA_HOME": "~/.sdkman/candidates/java/21"},
		},
		"go": {
			tree: []string{"sdk/go1.26/VERSION", "sdk/go1.26/bin/go", "sdk/go1.26/pkg/tool/x", "sdk/go1.26/src/x", "sdk/go1.26/.git/config"},
			path: "sdk/go1.26/bin", shown: []string{"sdk/go1.26/VERSION", "sdk/go1.26/bin", "sdk/go1.26/pkg", "sdk/go1.26/src"},
		},
		"mise": {
			tree: []string{
				".local/bin/mise", ".local/share/mise/installs/node/22/bin/node", ".local/share/mise/shims/",
				".local/share/keyrings/login", ".config/mise/config.toml",
			},
			links: map[string]string{".local/share/mise/shims/node": "../../../bin/mise"},
			path:  ".local/share/mise/shims", shown: []string{".local/bin/mise", ".local/share/mise/installs", ".local/share/mise/shims"},
			want: map[string]string{"MISE_DATA_DIR": "~/.local/share/mise"},
		},
		"pipx, by a link in ~/.local/bin": {
			tree: []string{
				".local/bin/own", ".local/share/pipx/venvs/black/pyvenv.cfg", ".local/share/pipx/venvs/black/bin/black", ".local/share/pipx/venvs/black/lib/x",
				".local/share/pipx/venvs/black/pip.conf", ".local/share/uv/python/3.13/bin/python3", ".local/share/uv/python/3.13/lib/python3.13/x", ".local/share/x",
			},
			links: map[string]string{
				".local/bin/black": "../share/pipx/venvs/black/bin/black", ".local/share/pipx/venvs/black/bin/python": "../../../../uv/python/3.13/bin/python3",
			},
			path: ".local/bin",
			shown: []string{
				".local/bin", ".local/share/pipx/venvs/black/bin", ".local/share/pipx/venvs/black/lib", ".local/share/pipx/venvs/black/pyvenv.cfg",
				".local/share/uv/python/3.13/bin", ".local/share/uv/python/3.13/lib",
			},
		},
		"homebrew": {
			tree:  []string{"brew/bin/brew", "brew/Cellar/jq/1.7/bin/jq", "brew/etc/secrets", "brew/var/db", "brew/opt/x"},
			links: map[string]string{"brew/bin/jq": "../Cellar/jq/1.7/bin/jq"},
			path:  "brew/bin", shown: []string{"brew/Cellar", "brew/bin", "brew/opt"},
		},
		"something else": {
			tree: []string{".tool/bin/x", ".tool/lib/y", ".tool/config.yml", ".tool/credentials"},
			path: ".tool/bin", shown: []string{".tool/bin", ".tool/lib"},
		},
		"a version of pyenv": {
			tree: []string{".pyenv/libexec/pyenv", ".pyenv/version", ".pyenv/versions/3.12/bin/python3", ".pyenv/versions/3.12/lib/python3.12/os.py"},
			path: ".pyenv/versions/3.12/bin", shown: []string{".pyenv/libexec", ".pyenv/version", ".pyenv/versions/3.12/bin", ".pyenv/versions/3.12/lib"},
			want: map[string]string{"PYENV_ROOT": "~/.pyenv"},
		},
		"a link to what is not shown": {
			tree:  []string{"node/bin/node", "node/etc/tool"},
			links: map[string]string{"node/bin/tool": "../etc/tool"},
			path:  "node/bin", shown: []string{"node/bin"},
		},
		"programs of one's own": {
			tree:  []string{"bin/mine", "bin/node", ".env", "project/run.sh", "project/.env"},
			links: map[string]string{"bin/run": "../project/run.sh"},
			path:  "bin", shown: []string{"bin", "project/run.sh"},
		},
		"scripts": {
			tree:  []string{"scripts/mine", "project/run.sh"},
			links: map[string]string{"scripts/run": "../project/run.sh"},
			path:  "scripts", shown: []string{"project/run.sh", "scripts"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := home(t)
			tree(t, home, test.tree...)
			for at, to := range test.links {
				link(t, to, filepath.Join(home, at))
			}
			entry := filepath.Join(home, test.path)
			host := hostenv.Host{Path: entry + ":/usr/bin", Home: home, Env: func(name string) string { return test.env[name] }, View: paths}
			f := hostenv.Find(host, nil)
			host.View = isolated
			require.Equal(t, f, hostenv.Find(host, nil), "also where the home directory is below /tmp")
			require.Equal(t, test.shown, shown(t, home, f), "%+v", f)
			inside, err := filepath.EvalSymlinks(entry)
			require.NoError(t, err)
			require.Equal(t, inside+":/usr/bin", f.Path)
			require.Empty(t, f.LeftOut)
			roots := map[string]bool{}
			for _, toolchain := range f.Toolchains {
				require.False(t, roots[toolchain.Root], "%s is there once", toolchain.Root)
				roots[toolchain.Root] = true
			}
			want := map[string]string{}
			for name, value := range test.want {
				want[name] = strings.Replace(value, "~", home, 1)
			}
			require.Equal(t, want, f.Env)
		})
	}
}

// TestFind_LeavesOut what would show more than programs, and says why.
func TestFind_LeavesOut(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, ".config/composer/vendor/bin/x", ".ssh/id", "tools/bin/x", "rust/bin/cargo", "loose")
	link(t, "../../.ssh/id", filepath.Join(home, "tools/bin/id"))
	find := func(view hostenv.View, only []string, entries ...string) hostenv.Found {
		return hostenv.Find(hostenv.Host{Path: strings.Join(entries, ":"), Home: home, Env: func(string) string { return "" }, View: view}, only)
	}
	f := find(paths, nil, home, "relative", filepath.Join(home, ".config/composer/vendor/bin"),
		filepath.Join(home, "missing"), "/usr/bin", filepath.Join(home, "loose"), "/")
	require.Equal(t, "/usr/bin", f.Path)
	require.Empty(t, f.Mounts())
	why := map[string]string{}
	for _, l := range f.LeftOut {
		why[l.Entry] = l.Why
	}
	require.Len(t, why, 4, "what does not exist is missed by nobody")
	require.Contains(t, why["relative"], "absolute")
	require.Contains(t, why[home], "home directory")
	require.Contains(t, why["/"], "home directory")
	require.Contains(t, why[filepath.Join(home, ".config/composer/vendor/bin")], "keys and settings")

	f = find(paths, nil, filepath.Join(home, "tools/bin"))
	require.Equal(t, []string{"tools/bin"}, shown(t, home, f), "a link to a key shows no key")

	f = find(paths, []string{"go"}, filepath.Join(home, "rust/bin"), filepath.Join(home, "tools/bin"), "/usr/bin")
	require.Equal(t, "/usr/bin", f.Path)
	require.Contains(t, f.LeftOut[0].Why, "kind rust")
	f = find(paths, []string{"rust"}, filepath.Join(home, "rust/bin"), filepath.Join(home, "tools/bin"), "/usr/bin")
	require.Equal(t, filepath.Join(home, "rust/bin")+":/usr/bin", f.Path)

	f = find(isolated, nil, "/tmp/", "/usr/bin")
	require.Equal(t, "/usr/bin", f.Path)
	require.Contains(t, f.LeftOut[0].Why, "below /tmp")
}

// TestFind_EntriesTogether: what several entries of a PATH have in common is there once.
func TestFind_EntriesTogether(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, "jdk1/release", "jdk1/lib/x", "jdk1/bin/java", "jdk2/release", "jdk2/lib/x", "jdk2/bin/java", "tools/mise",
		"tools/x", "rust/bin/cargo", "rustup/settings.toml", ".config/rustup/settings.toml")
	for i := range 300 {
		tree(t, home, fmt.Sprintf(".rbenv/versions/%d/bin/", i))
	}
	tree(t, home, ".rbenv/libexec/rbenv", ".rbenv/shims/", ".pyenv/libexec/pyenv", ".pyenv/shims/", ".pyenv/bin/")
	link(t, "../tools/mise", filepath.Join(home, "bin/mise"))
	link(t, filepath.Join(home, "tools/x"), filepath.Join(home, "system/x"))
	rustup := filepath.Join(home, "rustup")
	find := func(view hostenv.View, names ...string) hostenv.Found {
		entries := make([]string, len(names))
		for i, name := range names {
			entries[i] = filepath.Join(home, name)
		}
		env := func(name string) string { return map[string]string{"RUSTUP_HOME": rustup}[name] }
		return hostenv.Find(hostenv.Host{Path: strings.Join(entries, ":"), Home: home, Env: env, View: view}, nil)
	}
	f := find(paths, "jdk1/bin", "jdk2/bin", "jdk1/bin")
	require.Equal(t, filepath.Join(home, "jdk1/bin")+":"+filepath.Join(home, "jdk2/bin"), f.Path)
	require.Equal(t, filepath.Join(home, "jdk1"), f.Env["JAVA_HOME"], "the first one's")
	require.Len(t, find(paths, ".pyenv/shims", ".pyenv/bin").Toolchains, 1)
	require.Equal(t, []string{"bin", "tools"}, shown(t, home, find(paths, "bin", "tools")), "a mount in another one is none")
	f = find(paths, ".rbenv/shims")
	require.Contains(t, f.LeftOut[0].Why, "256 mounts")
	require.Equal(t, []string{"tools/x"}, shown(t, home, find(paths.Seeing(filepath.Join(home, "system")), "system")), "what the system's directories lead to")
	host := hostenv.ViewOf(isolation.Caps{Level: isolation.LevelNone})
	require.Equal(t, filepath.Join(home, "missing"), find(host, "missing").Path, "no sandbox, the same PATH")

	f = find(paths, "rust/bin")
	require.Equal(t, []string{"rust/bin", "rustup/settings.toml"}, shown(t, home, f))
	require.Equal(t, rustup, f.Env["RUSTUP_HOME"])
	rustup = filepath.Join(home, ".config/rustup")
	f = find(paths, "rust/bin")
	require.Equal(t, []string{"rust/bin"}, shown(t, home, f))
	require.Empty(t, f.Env, "a place that is not shown is not named")

	f = hostenv.Find(hostenv.Host{Path: "/", Env: os.Getenv, View: paths}, nil)
	require.Contains(t, f.LeftOut[0].Why, "home directory", "nobody's home, and everybody's")
}

// TestFind_FollowsTheWorkspaceNowhere but to an interpreter: commands of a session before may have
// made what is there.
func TestFind_FollowsTheWorkspaceNowhere(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, "work/.venv/pyvenv.cfg", "work/.venv/bin/", ".ssh/id", "other/bin/secret", "py/bin/python3",
		"py/lib/python3.13/x", "py/etc/x", "node/bin/node", "work/run.sh", "tools/bin/x")
	link(t, "../../../node/bin/node", filepath.Join(home, "work/.venv/bin/node"))
	link(t, "../../work/run.sh", filepath.Join(home, "tools/bin/run"))
	link(t, "../work", filepath.Join(home, "tools/lib"))
	link(t, "../.ssh", filepath.Join(home, "tools/share"))
	link(t, "../../../.ssh/id", filepath.Join(home, "work/.venv/bin/a"))
	link(t, "../../../other/bin/secret", filepath.Join(home, "work/.venv/bin/b"))
	link(t, "../../../py/bin/python3", filepath.Join(home, "work/.venv/bin/python"))
	link(t, home, filepath.Join(home, "work/.venv/lib"))
	f := hostenv.Find(hostenv.Host{
		Path: filepath.Join(home, "work/.venv/bin") + ":" + filepath.Join(home, "tools/bin"), Home: home, Workspace: filepath.Join(home, "work"),
		Env: func(string) string { return "" }, View: paths,
	}, nil)
	require.Equal(t, []string{"py/bin", "py/lib", "tools/bin"}, shown(t, home, f))
	require.Equal(t, filepath.Join(home, "work/.venv/bin")+":"+filepath.Join(home, "tools/bin"), f.Path)
}

// TestFind_PlacesOfTheWorkspaceAreTranslated where it has another place.
func TestFind_PlacesOfTheWorkspaceAreTranslated(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, "work/node_modules/.bin/x")
	f := hostenv.Find(hostenv.Host{
		Path: filepath.Join(home, "work/node_modules/.bin"), Home: home, Workspace: filepath.Join(home, "work"), Env: os.Getenv, View: isolated,
	}, nil)
	require.Equal(t, "/workspace/node_modules/.bin", f.Path)
}

func TestKinds_AreWhatTheFlagTakes(t *testing.T) {
	t.Parallel()
	kinds := hostenv.Kinds()
	require.True(t, slices.IsSorted(kinds))
	require.Subset(t, kinds, []string{"go", "rust", "pyenv", "python", "node", "java", "homebrew", "mise", "asdf", hostenv.Other})
}

// fill puts a file of that many bytes into a cache, last used so long ago.
func fill(t *testing.T, c *hostenv.Cache, name string, bytes int, ago time.Duration) string {
	t.Helper()
	path := filepath.Join(c.Files(), name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, make([]byte, bytes), 0o644))
	when := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(path, when, when))
	return path
}

func cacheOf(t *testing.T, caches hostenv.Caches, name string) *hostenv.Cache {
	t.Helper()
	c, err := caches.Open(t.Context(), name, "/home/ada/"+name)
	require.NoError(t, err)
	return c
}

// age makes a cache one that was last used so long ago.
func age(t *testing.T, caches hostenv.Caches, name string, ago time.Duration) {
	t.Helper()
	when := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(filepath.Join(caches.Dir, name, "used"), when, when))
}

// TestCaches_TheLeastRecentlyUsedGoes when all are over the bound, and none that is in use.
func TestCaches_TheLeastRecentlyUsedGoes(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: filepath.Join(t.TempDir(), "caches")}
	old, used := cacheOf(t, caches, "old"), cacheOf(t, caches, "used")
	caches.Bytes = 1000
	newer := cacheOf(t, caches, "newer")
	oldFile, usedFile, newFile := fill(t, old, "pip/x", 400, 0), fill(t, used, "pip/x", 400, 0), fill(t, newer, "pip/x", 400, 0)
	require.NoError(t, os.Chmod(filepath.Dir(oldFile), 0o500), "as Go leaves modules")
	require.NoError(t, old.Close())
	require.FileExists(t, oldFile, "0 is no bound")
	age(t, caches, "used", 2*time.Hour)
	age(t, caches, "old", time.Hour)
	require.NoError(t, newer.Close())
	require.NoFileExists(t, oldFile)
	require.FileExists(t, usedFile)
	require.FileExists(t, newFile)
	require.NoError(t, used.Close())
	require.FileExists(t, usedFile)

	info, err := os.Stat(filepath.Join(caches.Dir, "used", "used"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), info.ModTime(), time.Hour, "it was used until now")
	foreign := filepath.Join(caches.Dir, ".others", "files")
	require.NoError(t, os.MkdirAll(foreign, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "x"), make([]byte, 2000), 0o644))
	caches.Bytes = 500
	cacheOf(t, caches, "next")
	require.NoFileExists(t, newFile, "a session that begins makes room")
	require.FileExists(t, usedFile, "but no more than is needed")
	require.FileExists(t, filepath.Join(foreign, "x"), "what is no cache is left alone")
}

// TestCaches_OpenWaitsForARemoval, and then has a directory all the same.
func TestCaches_OpenWaitsForARemoval(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir()}
	first := cacheOf(t, caches, "x")
	require.NoError(t, first.Close())
	removing := flock.New(filepath.Join(caches.Dir, "x", "lock"))
	require.NoError(t, removing.Lock())
	opened := make(chan error)
	require.NoError(t, os.Remove(filepath.Join(caches.Dir, "x", "used")))
	go func() {
		c, err := caches.Open(t.Context(), "x", "/home/ada/x")
		if err == nil {
			_, err = os.Stat(c.Files())
			err = errors.Join(err, c.Close())
		}
		opened <- err
	}()
	require.Eventually(t, func() bool { // it is on its way
		_, err := os.Stat(filepath.Join(caches.Dir, "x", "used"))
		return err == nil
	}, time.Minute, time.Millisecond)
	require.NoError(t, os.RemoveAll(first.Files()))
	require.NoError(t, removing.Close())
	require.NoError(t, <-opened)
}

// TestCache_IsFoundByPrograms where sandboxes have it.
func TestCache_IsFoundByPrograms(t *testing.T) {
	t.Parallel()
	c := cacheOf(t, hostenv.Caches{Dir: t.TempDir()}, "x")
	for view, at := range map[*hostenv.View]string{&isolated: "/cache", &paths: c.Files()} {
		require.Equal(t, isolation.Mount{Host: c.Files(), Guest: at, Write: true, Cache: true}, c.Mount(*view))
		require.Equal(t, map[string]string{
			"GOMODCACHE": at + "/go/mod", "GOCACHE": at + "/go/build", "npm_config_cache": at + "/npm", "PIP_CACHE_DIR": at + "/pip", "UV_CACHE_DIR": at + "/uv",
			"CARGO_HOME": at + "/cargo", "GRADLE_USER_HOME": at + "/gradle", "YARN_CACHE_FOLDER": at + "/yarn", "COREPACK_HOME": at + "/corepack",
			"MAVEN_OPTS": "-Dmaven.repo.local=" + at + "/maven",
		}, c.Env(*view))
	}
}

// TestCaches_AnOwnCacheThatIsTooBigLosesParts: the oldest results of the compiler, then what is
// largest.
func TestCaches_AnOwnCacheThatIsTooBigLosesParts(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 1000}
	c := cacheOf(t, caches, "own")
	oldest, newest, npm := fill(t, c, "go/build/bb/1-d", 300, time.Hour), fill(t, c, "go/build/aa/2-d", 300, 0), fill(t, c, "npm/x", 600, 0)
	require.NoError(t, c.Close())
	require.NoFileExists(t, oldest)
	require.FileExists(t, newest)
	require.FileExists(t, npm)

	c = cacheOf(t, caches, "own")
	mod, pip := fill(t, c, "go/mod/x@v1/x.go", 300, 0), fill(t, c, "pip/x", 900, 0)
	require.NoError(t, c.Close())
	require.NoFileExists(t, pip)
	require.NoFileExists(t, newest)
	require.FileExists(t, mod, "that was enough")
	require.FileExists(t, npm)
}

// TestCaches_WhatIsTooDeepGoes: nobody can hide bytes, or keep others from being counted.
func TestCaches_WhatIsTooDeepGoes(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 1 << 30}
	c := cacheOf(t, caches, "deep")
	require.NoError(t, os.MkdirAll(filepath.Join(c.Files(), "x", strings.Repeat("d/", 200)), 0o755))
	link(t, "/", filepath.Join(c.Files(), "y", "root"))
	require.NoError(t, c.Close())
	require.NoDirExists(t, filepath.Join(c.Files(), "x"))
	require.DirExists(t, filepath.Join(c.Files(), "y"), "a link is not followed")
}

// TestCaches_OneOfAProject: a directory has one cache by whatever path, and others have others.
func TestCaches_OneOfAProject(t *testing.T) {
	t.Parallel()
	home := home(t)
	tree(t, home, "a/project/", "b/project/")
	link(t, "a", filepath.Join(home, "link"))
	name := func(dir string) string {
		t.Helper()
		name, err := hostenv.ProjectCache(filepath.Join(home, dir))
		require.NoError(t, err)
		require.NoError(t, hostenv.CheckCacheName(name))
		return name
	}
	require.Equal(t, name("a/project"), name("link/project"))
	require.NotEqual(t, name("a/project"), name("b/project"))
	_, err := hostenv.ProjectCache(filepath.Join(home, "missing"))
	require.Error(t, err)
}

// TestCaches_TwoSessionsAtOnce: none loses what it has while the other ends.
func TestCaches_TwoSessionsAtOnce(t *testing.T) {
	t.Parallel()
	caches := hostenv.Caches{Dir: t.TempDir(), Bytes: 10}
	first, second := cacheOf(t, caches, "x"), cacheOf(t, caches, "x")
	kept := fill(t, first, "npm/x", 100, 0)
	require.NoError(t, first.Close())
	require.FileExists(t, kept)
	require.NoError(t, second.Close())
	require.NoFileExists(t, kept)
}

func TestCheckCacheName(t *testing.T) {
	t.Parallel()
	require.NoError(t, hostenv.CheckCacheName("shared-1.x"))
	for _, name := range []string{"", ".", "..", "a/b", ".hidden", "a b", strings.Repeat("x", 101)} {
		require.Error(t, hostenv.CheckCacheName(name), name)
	}
}
