//nolint:thelper // these are tests
package worker_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

var (
	handle = regexp.MustCompile(`path="(result:[^"]+)"`)
	place  = regexp.MustCompile(`:\d+(@\d+)?$`)
)

// whole reads all of what a text names that was cut, from its beginning, with a tool that
// reads files, as a model would: the lines of each page, without their numbers, until no
// page names another.
func (s *session) whole(reader, cut string) string {
	s.t.Helper()
	found := handle.FindStringSubmatch(strings.ReplaceAll(cut, `\"`, `"`)) // it may be JSON
	require.NotNil(s.t, found, "it names no handle: %s", cut[max(0, len(cut)-300):])
	var all strings.Builder
	path := place.ReplaceAllString(found[1], "")
	for range 2000 {
		page := s.ok(reader, args{"path": path})
		require.LessOrEqual(s.t, utf8.RuneCountInString(page), prose.MaxText)
		if strings.HasPrefix(page, `{"data":`) {
			var value struct{ Data string }
			require.NoError(s.t, json.Unmarshal([]byte(page), &value))
			page = value.Data
		}
		at := strings.LastIndexByte(page, '\n')
		lines, mark := page[:at], page[at+1:]
		for i, line := range strings.Split(lines, "\n") {
			_, text, numbered := strings.Cut(line, "\t")
			require.True(s.t, numbered, line)
			if all.Len() > 0 && (i > 0 || !strings.Contains(path, "@")) {
				all.WriteByte('\n')
			}
			all.WriteString(text)
		}
		next := handle.FindStringSubmatch(mark)
		if next == nil {
			return all.String()
		}
		require.NotEqual(s.t, path, next[1])
		path = next[1]
	}
	require.Fail(s.t, "there is no end of it")
	return ""
}

// cutLists: of a list that is not shown whole the total is told, and all of it can be read.
func cutLists(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	s.sh("mkdir many; cd many; i=0; while [ $i -lt 1200 ]; do echo hit $i >f$i.txt; i=$((i+1)); done; echo x >a.log; echo x >b.log; echo '*.log' >.gitignore")
	var files, paths, hits []string
	for i := range 1200 {
		files = append(files, fmt.Sprintf("f%d.txt (", i))
		paths = append(paths, fmt.Sprintf("many/f%d.txt", i))
		hits = append(hits, fmt.Sprintf("many/f%d.txt:1:hit %d", i, i))
	}
	slices.Sort(files)
	slices.Sort(paths)
	slices.SortFunc(hits, func(a, b string) int {
		return strings.Compare(a[:strings.IndexByte(a, ':')], b[:strings.IndexByte(b, ':')])
	})
	names := slices.Concat([]string{".gitignore (", "a.log (", "b.log ("}, files)
	for name, test := range map[string]struct {
		set, reader, tool string
		args              args
		mark              string
		want              []string // what the lines begin with
	}{
		"list": {"core", "read", "list", args{"path": "many"}, "[500 of 1203 names; the others:", names},
		"glob": {"core", "read", "glob", args{"pattern": "many/*.txt"}, "[500 of 1200 files; 2 left out by .gitignore; the others:", paths},
		"tree": {
			"core", "read", "tree",
			args{"path": "many"},
			"[500 of 1201 entries; 2 left out by .gitignore; the others:", slices.Concat(names[:1], files),
		},
		"grep": {
			"core", "read", "grep",
			args{"pattern": "hit", "path": "many"},
			"[500 of 1200 matches; 1201 files searched; 2 left out by .gitignore; the others:", hits,
		},
		"grep, few": {
			"core", "read", "grep",
			args{"pattern": "hit", "path": "many", "limit": 7},
			"[7 of 1200 matches; 1201 files searched; 2 left out by .gitignore; the others:", hits,
		},
		"openrath": {"openrath", "read_workspace_file", "list_workspace_files", args{"path": "many"}, `"total":1203,"truncated":"703 more; the others:`, names},
		"smithers": {
			"smithers", "read", "grep",
			args{"pattern": "hit"},
			"[700 more of 1200 lines; the others:", hits,
		},
		"files, names": {"files", "read_file", "list_files", args{"pattern": "many/*.txt"}, "[700 more of 1200 files; the others:", paths},
		"files, lines": {
			"files", "read_file", "search_files",
			args{"pattern": "hit", "file_pattern": "*.txt"},
			"[700 more of 1200 lines; the others:", hits,
		},
	} {
		in := s.with(test.set)
		text := in.ok(test.tool, test.args)
		require.Contains(t, text, test.mark, name)
		got := strings.Split(in.whole(test.reader, text), "\n")
		require.Len(t, got, len(test.want), name)
		for i := range got {
			require.True(t, strings.HasPrefix(got[i], test.want[i]), "%s: %q, %q", name, test.want[i], got[i])
		}
	}
	text := s.ok("glob", args{"pattern": "many/*.txt"})
	next := handle.FindStringSubmatch(text)[1]
	require.True(t, strings.HasSuffix(next, ":501"), next)
	s.is("   700\t"+paths[699]+"\n[lines 700-700 of 1200; read on with path=\""+strings.TrimSuffix(next, "501")+"701\"]",
		"read", args{"path": next, "offset": 700, "limit": 1})
}

// cutLines: lines that are too long to be shown, of a file and where they are found.
func cutLines(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	const size = 10_000_000
	s.sh(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x >line; printf 'short\n%%s\nend\n' "$(head -c 80000 line | sed 's/x/é/g')" >three`, size))
	text := s.ok("read", args{"path": "line"})
	require.Contains(t, text, fmt.Sprintf("x [... and %d more bytes]\n[lines 1-1 of 1; line 1 is cut: read on in it with path=\"result:", size-2000))
	require.Contains(t, text, ":1@2001\"]")
	begin := place.ReplaceAllString(handle.FindStringSubmatch(text)[1], "")
	s.has("read", args{"path": begin + ":1@5000001"}, "     1\tx", fmt.Sprintf("[line 1 of 1, bytes 5000001-5043992 of %d; read on with path=\"%s:1@5043993\"]", size, begin))
	s.is(fmt.Sprintf("     1\txxx\n[line 1 of 1, bytes %d-%d of %d]", size-2, size, size), "read", args{"path": fmt.Sprintf("%s:1@%d", begin, size-2)})
	s.sh("head -c 200000 line >part")
	all := s.whole("read", s.ok("read", args{"path": "part"}))
	require.Equal(t, strings.Repeat("x", 200_000), all)
	text = s.ok("read", args{"path": "three", "offset": 2})
	require.Contains(t, text, "é [... and 78000 more characters]\n     3\tend\n[lines 2-3 of 3; line 2 is cut: read on in it with path=\"")
	next := handle.FindStringSubmatch(text)[1]
	require.True(t, strings.HasSuffix(next, ":2@4001"), next)
	page := s.ok("read", args{"path": next, "limit": 1})
	require.True(t, strings.HasPrefix(page, "     2\té"), page[:20])
	require.Contains(t, page, "[line 2 of 3, bytes 4001-91984 of 160000; read on with path=\"")
	require.Equal(t, "short\n"+strings.Repeat("é", 80_000)+"\nend", s.whole("read", text))
	for set, reader := range map[string]string{
		"openrath": "read_workspace_file", "smithers": "read", "files": "read_file",
	} {
		in := s.with(set)
		text := in.ok(reader, args{"path": "three"})
		if set == "openrath" {
			require.Contains(t, text, `...(truncated)","truncated":"the file has 160011 bytes; read on with path=`)
		} else {
			require.Contains(t, text, "[cut here: these are the first", set)
		}
		require.Equal(t, "short\n"+strings.Repeat("é", 80_000)+"\nend", in.whole(reader, text), set)
	}
	text = s.ok("grep", args{"pattern": "é$"})
	require.Contains(t, text, "é [... and 159500 more bytes]\n[1 match; 3 files searched; 1 line is cut: whole with path=\"")
	require.Equal(t, "three:2:"+strings.Repeat("é", 80_000), s.whole("read", text))
}

// cutFiles: what a read did not show is kept as it was then, and what changes later is not in it.
func cutFiles(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	var all strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&all, "line %d é\n", i+1)
	}
	s.ok("write", args{"path": "f", "content": all.String()})
	first := s.ok("read", args{"path": "f"})
	require.Contains(t, first, " of 20000; read on with offset=")
	require.Contains(t, first, ", or in the file as it was now with path=\"result:")
	again := s.ok("read", args{"path": "f", "offset": 10_000})
	s.ok("write", args{"path": "f", "content": "new\n"})
	want := strings.TrimSuffix(all.String(), "\n")
	require.Equal(t, want, s.whole("read", first))
	require.Equal(t, want, s.whole("read", again))
	next := handle.FindStringSubmatch(again)[1]
	s.has("read", args{"path": next, "offset": 19_999}, " 19999\tline 19999 é\n", "[lines 19999-20000 of 20000]")

	s.sh("head -c 300000 /dev/urandom >bytes")
	in := s.with("openrath")
	text := in.ok("read_workspace_file", args{"path": "bytes", "encoding": nil})
	require.Contains(t, text, `...(truncated)","encoding":"base64","truncated":"the file has 300000 bytes; read on with path=`)
	bytes, err := base64.StdEncoding.DecodeString(in.whole("read_workspace_file", text))
	require.NoError(t, err)
	require.Len(t, bytes, 300_000)
	sum := sha256.Sum256(bytes)
	require.Equal(t, hex.EncodeToString(sum[:])+"\n", s.sh("sha256sum <bytes | cut -c 1-64"))
}

// cutValues: JSON stays JSON, and is kept as it is in the file; commands have head and tail.
func cutValues(t *testing.T, execute executor) {
	s := newSession(t, execute, "core")
	array := "[" + strings.Repeat("1.50, ", 20_000) + "2]"
	object := `{"b":"` + strings.Repeat("é", 60_000) + `"}`
	for name, document := range map[string]string{"array": array, "object": object} {
		s.ok("write", args{"path": name, "content": document})
		text := s.ok("json_read", args{"path": name})
		require.True(t, json.Valid([]byte(text)), text[:100])
		require.LessOrEqual(t, utf8.RuneCountInString(text), prose.MaxText)
		require.Equal(t, document, s.whole("read", text), name)
	}
	text := s.ok("bash", args{"command": "seq 0 8999 | sed 's/$/ é/'"})
	require.Contains(t, text, "characters left out")
	lines := strings.Split(s.whole("read", text), "\n")
	require.Len(t, lines, 9000)
	require.Equal(t, "8999 é", lines[8999])
	got := s.outOfTime("seq 20000; sleep 100", "\n20000\n")
	require.Len(t, strings.Split(s.whole("read", got.text), "\n"), 20_000, "what was written until then")
}
