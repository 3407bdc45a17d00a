package wire_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var update = flag.Bool("update", false, "rewrite the golden files of the current version")

// goldenDir holds the bodies that version 1 writes. When the version changes, the
// directory stays as it is and a new one is begun: old bodies decode for ever.
const goldenDir = "testdata/v1"

// codec is how one family of golden files is written and read.
type codec struct {
	encode func(t *testing.T, sample any) []byte
	decode func(body []byte) (any, error)
}

// codecs are by folder of goldenDir.
var codecs = map[string]codec{
	"payload": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.EncodePayload(as[protocol.Payload](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.DecodePayload(body) },
	},
	"value": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.EncodeValue(as[protocol.Value](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.DecodeValue(body) },
	},
	"call": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.EncodeCall(as[*protocol.Call](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.DecodeCall(body) },
	},
	"result": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.EncodeResult(as[*protocol.Result](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.DecodeResult(body) },
	},
	"worker": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.Encode(as[*wire.WorkerInfo](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.Decode[wire.WorkerInfo](body) },
	},
	"frame": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.Encode(as[*wire.Frame](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.Decode[wire.Frame](body) },
	},
	"question": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.Encode(as[*protocol.Question](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.Decode[protocol.Question](body) },
	},
	"answer": {
		encode: func(t *testing.T, sample any) []byte {
			t.Helper()
			return must(wire.Encode(as[*protocol.Answer](t, sample)))(t)
		},
		decode: func(body []byte) (any, error) { return wire.Decode[protocol.Answer](body) },
	},
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func as[T any](t *testing.T, v any) T {
	t.Helper()
	typed, ok := v.(T)
	require.Truef(t, ok, "sample is a %T", v)
	return typed
}

// TestGolden_SamplesHaveTheirBytes pins what this version writes and that it
// reads back what it wrote.
func TestGolden_SamplesHaveTheirBytes(t *testing.T) {
	t.Parallel()
	for name, sample := range samples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(goldenDir, filepath.FromSlash(name)+".json")
			codec := codecs[path.Dir(name)]
			body := codec.encode(t, sample)
			if *update {
				writeGolden(t, file, body)
			}
			require.Equal(t, string(readGolden(t, file)), string(body), "run the tests with -update if the change is meant")

			decoded, err := codec.decode(body)
			require.NoError(t, err)
			require.Equal(t, sample, decoded)
		})
	}
}

// TestGolden_EveryFileDecodesAndReencodes also reads files that no sample of this
// version makes any more.
func TestGolden_EveryFileDecodesAndReencodes(t *testing.T) {
	t.Parallel()
	files := goldenFiles(t)
	require.NotEmpty(t, files)
	for name, body := range files {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec, ok := codecs[path.Dir(name)]
			require.True(t, ok, "no codec for this folder")
			decoded, err := codec.decode(body)
			require.NoError(t, err)
			require.Equal(t, string(body), string(codec.encode(t, decoded)))
		})
	}
}

// TestGolden_UnknownFieldsAreIgnored adds a field of a later version to every body.
func TestGolden_UnknownFieldsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, body := range goldenFiles(t) {
		switch name {
		case "payload/unknown", "value/unknown", "payload/user", "value/user":
			continue // kept byte by byte, the new field too
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := codecs[path.Dir(name)]
			later := append([]byte(`{"field_of_a_later_version":{"x":[1]},`), body[1:]...)
			decoded, err := codec.decode(later)
			require.NoError(t, err)
			require.Equal(t, string(body), string(codec.encode(t, decoded)))
		})
	}
}

// TestGolden_EveryKindHasSamples fails when a kind is added without golden files.
func TestGolden_EveryKindHasSamples(t *testing.T) {
	t.Parallel()
	payloads, values := map[protocol.Kind]bool{}, map[protocol.Kind]bool{}
	for _, sample := range samples() {
		payloads[wire.KindOf(sample)] = true
		values[wire.ValueKindOf(sample)] = true
	}
	kinds := wire.Kinds()
	require.NotEmpty(t, kinds)
	for _, kind := range kinds {
		require.True(t, payloads[kind], "no golden file of payload %s", kind)
		require.True(t, values[kind], "no golden file of value %s", kind)
	}
}

func writeGolden(t *testing.T, file string, body []byte) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, json.Indent(&out, body, "", "  "))
	out.WriteByte('\n')
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, out.Bytes(), 0o600))
}

// readGolden returns the exact bytes of the wire: the file is indented for
// readers, and nothing but white space is removed.
func readGolden(tb testing.TB, file string) []byte {
	tb.Helper()
	indented, err := os.ReadFile(file)
	require.NoError(tb, err)
	var body bytes.Buffer
	require.NoError(tb, json.Compact(&body, indented))
	return body.Bytes()
}

// goldenFiles returns every golden file by its name, as in "payload/noop".
func goldenFiles(tb testing.TB) map[string][]byte {
	tb.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(goldenDir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(goldenDir, file)
		name := filepath.ToSlash(relative)
		files[name[:len(name)-len(filepath.Ext(name))]] = readGolden(tb, file)
		return err
	})
	require.NoError(tb, err)
	return files
}

// TestDocs_WireNamesEveryField of those bodies that docs/wire.md describes field by field.
func TestDocs_WireNamesEveryField(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/wire.md")
	require.NoError(t, err)
	for paragraph, bodies := range map[string][]any{
		"Turns": {wire.TurnRun{}, protocol.InstructionFile{}, protocol.Author{}, wire.TurnRunResult{}},
		"MCP servers": {
			protocol.MCPServer{},
			protocol.MCPClient{},
			wire.MCPList{},
			wire.MCPListResult{},
			wire.MCPTool{},
			protocol.MCPCall{},
			protocol.MCPCallResult{},
			protocol.MCPContent{},
		},
	} {
		_, after, found := strings.Cut(string(page), "\n**"+paragraph+".** ")
		require.True(t, found, paragraph)
		text, _, _ := strings.Cut(after, "\n**")
		for _, body := range bodies {
			for _, field := range reflect.VisibleFields(reflect.TypeOf(body)) {
				if field.Anonymous { // its fields are visible themselves
					continue
				}
				name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
				require.Contains(t, text, "`"+name+"`", "docs/wire.md, %s: %T", paragraph, body)
			}
		}
	}
}
