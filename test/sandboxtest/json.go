//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func jsonTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"places of a document":       jsonPlaces,
		"places that are not there":  jsonMissing,
		"documents that are none":    jsonBroken,
		"a value that does not fit":  jsonLong,
		"whole documents":            jsonWhole,
		"one place, nothing else":    jsonReplace,
		"places that cannot be made": jsonRefused,
	}
}

func jsonPlaces(t *testing.T, f *tree) {
	const text = "{\n  \"a\": {\"b\": [1, 2.50, {\"c\": null}], \"\": 7, \"x/y~z\": true},\n  \"s\": \"ü\\u0041\"\n}\n"
	f.put(t, "doc.json", text)
	for query, want := range map[string]protocol.FilesJSONReadResult{
		"":           {Value: []byte(text[:len(text)-1]), JSONType: "object", Length: 2},
		"/a/b":       {Value: []byte(`[1, 2.50, {"c": null}]`), JSONType: "array", Length: 3},
		"/a/b/1":     {Value: []byte("2.50"), JSONType: "number"},
		"/a/b/2/c":   {Value: []byte("null"), JSONType: "null"},
		"/a/":        {Value: []byte("7"), JSONType: "number"},
		"/a/x~1y~0z": {Value: []byte("true"), JSONType: "boolean"},
		"/s":         {Value: []byte(`"ü\u0041"`), JSONType: "string"},
	} {
		want.Path, want.Query, want.Bytes, want.SHA256 = "doc.json", query, int64(len(text)), digest(text)
		got, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: query})
		require.NoError(t, err, query)
		require.Equal(t, want, got, query)
	}
}

func jsonMissing(t *testing.T, f *tree) {
	f.put(t, "doc.json", `{"list": [1, 2], "s": "x", "k": {}}`)
	for query, want := range map[string]string{
		"/x":       `the document has no key "x"; it has "list", "s", "k"`,
		"/list/2":  `"/list" is an array of 2 items, and "2" is none of them`,
		"/list/-":  `"-" is none of them`,
		"/list/01": `"01" is none of them`,
		"/list/-1": `"-1" is none of them`,
		"/s/0":     `"/s" is a string and has nothing in it`,
		"/k/a":     `"/k" has no key "a"`,
		"/a/b/c":   `the document has no key "a"`,
	} {
		_, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: query})
		require.Contains(t, requireFault(t, err, protocol.CodeNotFound), want, query)
	}
	_, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: "list"})
	require.Contains(t, requireFault(t, err, protocol.CodeInvalidArguments), "starts with a slash")
	_, err = f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "missing.json"})
	requireFault(t, err, protocol.CodeNotFound)
}

func jsonBroken(t *testing.T, f *tree) {
	for content, want := range map[string]string{
		"":                       "unexpected end",
		"{\n \"a\": 1,\n}":       "at line 3",
		"{} {}":                  "after top-level value",
		"\x00":                   "at line 1",
		strings.Repeat("[", 1e5): "depth",
	} {
		f.put(t, "doc.json", content)
		_, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json"})
		require.Contains(t, requireFault(t, err, codes.InvalidJSON), want)
		_, err = f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: "/a", Content: []byte("1")})
		requireFault(t, err, codes.InvalidJSON)
		require.Equal(t, content, f.get(t, "doc.json"))
	}
}

func jsonLong(t *testing.T, f *tree) {
	f.put(t, "doc.json", `{"b": "`+strings.Repeat("x", isolation.MaxReadBytes)+`", "a": [1]}`)
	got, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json"})
	require.NoError(t, err)
	require.Len(t, got.Value, int(got.Bytes))
	require.Equal(t, 2, got.Length)
	got, err = f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: "/a"})
	require.NoError(t, err)
	require.Equal(t, "[1]", string(got.Value))
}

func jsonWhole(t *testing.T, f *tree) {
	write := func(path, content string) protocol.FilesWriteResult {
		got, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: path, Content: []byte(content)})
		require.NoError(t, err)
		return got.FilesWriteResult
	}
	got := write("a/new.json", ` {"z":1.50,"a":[1,{}],"e":"<>"} `)
	const want = "{\n  \"z\": 1.50,\n  \"a\": [\n    1,\n    {}\n  ],\n  \"e\": \"<>\"\n}\n"
	require.Equal(t, want, f.get(t, "a/new.json")) //nolint:testifylint // the layout is meant
	require.True(t, got.Created)
	require.Equal(t, digest(want), got.SHA256)
	f.put(t, "tabs.json", "{\n\t\"a\": 1\n}\n")
	require.NoError(t, os.Chmod(f.host("tabs.json"), 0o640))
	write("tabs.json", `{"b":2}`)
	require.Equal(t, "{\n\t\"b\": 2\n}\n", f.get(t, "tabs.json"), "the indentation stays")
	require.EqualValues(t, 0o640, f.mode(t, "tabs.json"))
	f.put(t, "broken.json", "{{{")
	write("broken.json", `"text"`)
	require.Equal(t, "\"text\"\n", f.get(t, "broken.json"), "what is broken can be replaced")
}

// jsonReplace is a table of documents, places and what must come of them.
func jsonReplace(t *testing.T, f *tree) {
	for name, test := range map[string]struct{ content, query, value, want string }{
		"a value":                    {`{"a": 1, "b": 1.50}`, "/a", `2`, `{"a": 2, "b": 1.50}`},
		"layout and order stay":      {"{ \"z\" :1,\r\n\t\"a\":[ 1,2 ]}\r\n", "/a/1", `"x"`, "{ \"z\" :1,\r\n\t\"a\":[ 1,\"x\" ]}\r\n"},
		"the last of two equal keys": {`{"a":1,"a":2}`, "/a", `3`, `{"a":1,"a":3}`},
		"an object, laid out": {
			"{\n  \"a\": {\n    \"b\": 1\n  }\n}\n", "/a/b", `{"c":[1]}`, "{\n  \"a\": {\n    \"b\": {\n      \"c\": [\n        1\n      ]\n    }\n  }\n}\n",
		},
		"an object in one line":        {`{"a":1}`, "/a", `{ "b": [1, 2] }`, `{"a":{"b":[1,2]}}`},
		"a new key":                    {"{\n  \"a\": 1\n}\n", "/b", `2`, "{\n  \"a\": 1,\n  \"b\": 2\n}\n"},
		"a new key in one line":        {`{"a": 1}`, "/b", `2`, `{"a": 1, "b": 2}`},
		"a new key without any space":  {`{"a":1}`, "/b", `2`, `{"a":1,"b":2}`},
		"a new key of an empty object": {"{\n    \"a\": {}\n}", "/a/b c", `true`, "{\n    \"a\": {\n        \"b c\": true\n    }\n}"},
		"the first key of all":         {`{}`, "/a", `1`, `{"a": 1}`},
		"a new key that needs escapes": {`{}`, "/~0~1\"", `1`, `{"~/\"": 1}`},
		"the end of an array":          {"{\n  \"a\": [\n    1\n  ]\n}\n", "/a/-", `{"b":2}`, "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}\n"},
		"the end by its number":        {`[1, 2]`, "/2", `3`, `[1, 2, 3]`},
		"the end of an empty array":    {`[]`, "/-", `1`, `[1]`},
		"keys on the way":              {`{"a": {}}`, "/a/b/c", `1`, `{"a": {"b": {"c":1}}}`},
		"a new array on the way":       {`{"a":1}`, "/b/-/c", `[]`, `{"a":1,"b":[{"c":[]}]}`},
		"a number on the way":          {`{"a":1}`, "/b/2024", `1`, `{"a":1,"b":{"2024":1}}`},
		"a deep place":                 {`[[[[1]]]]`, "/0/0/0/0", `null`, `[[[[null]]]]`},
		"a document that is no object": {"5\n", "", `6`, "6\n"},
	} {
		f.put(t, "doc.json", test.content)
		got, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: test.query, Content: []byte(test.value)})
		require.NoError(t, err, name)
		require.Equal(t, test.want, f.get(t, "doc.json"), name)
		require.False(t, got.Created)
	}
}

func jsonRefused(t *testing.T, f *tree) {
	const content = `{"a": [1], "s": "x"}`
	f.put(t, "doc.json", content)
	for query, code := range map[string]protocol.Code{
		"/a/2":  protocol.CodeNotFound,
		"/a/x":  protocol.CodeNotFound,
		"/a/01": protocol.CodeNotFound,
		"/s/x":  protocol.CodeNotFound,
		"/s/-":  protocol.CodeNotFound,
		"a":     protocol.CodeInvalidArguments,
	} {
		_, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: query, Content: []byte("1")})
		requireFault(t, err, code)
		require.Equal(t, content, f.get(t, "doc.json"), query) //nolint:testifylint // nothing is touched
	}
	for _, value := range []string{"", "{", "1 2", "nul"} {
		_, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Content: []byte(value)})
		requireFault(t, err, codes.InvalidJSON)
	}
	_, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{
		Path: "doc.json", Query: "/s", Content: []byte(`"` + strings.Repeat("x", isolation.MaxFileSize) + `"`),
	})
	requireFault(t, err, codes.TooLarge)
	require.Equal(t, content, f.get(t, "doc.json")) //nolint:testifylint // nothing is touched
}
