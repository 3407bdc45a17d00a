package wire_test

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const sampleSum = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

func filePayloadSamples() map[string]any {
	return map[string]any{
		"payload/files_read":          protocol.FilesRead{Path: "a/b.txt", Offset: 3, Limit: 20},
		"payload/files_read_whole":    protocol.FilesRead{Path: "a/b.txt"},
		"payload/files_write":         protocol.FilesWrite{Path: "a/b.txt", Content: protocol.Bytes("one\ntwo\n")},
		"payload/files_write_binary":  protocol.FilesWrite{Path: "logo.png", Content: binary},
		"payload/files_write_empty":   protocol.FilesWrite{Path: "empty", Content: protocol.Bytes{}},
		"payload/files_edit":          protocol.FilesEdit{Path: "a/b.txt", Old: "one", New: "", ReplaceAll: true},
		"payload/files_write_guarded": protocol.FilesWrite{Path: "a", Content: protocol.Bytes("x"), ExpectSHA256: sampleSum, Guard: protocol.GuardRead},
		"payload/files_read_guarded":  protocol.FilesRead{Path: "a", MaxBytes: 200_000, Raw: true, Guard: protocol.GuardChanged},
		"payload/files_edit_first":    protocol.FilesEdit{Path: "a", Old: "one", New: "two", First: true},
		"payload/files_edit_several": protocol.FilesEdit{
			Path: "a", Edits: []protocol.FileEdit{{Old: "one", New: ""}, {Old: "<b>", New: "ü", ReplaceAll: true}},
			BestEffort: true, ExpectSHA256: sampleSum, Guard: protocol.GuardRead,
		},
		"payload/files_edit_patch":      protocol.FilesEdit{Path: "a", Patch: "@@ -1 +1 @@\n-one\n+two\n", MaxBytes: 200_000},
		"payload/files_json_read":       protocol.FilesJSONRead{Path: "a.json", Query: "/b/0", Guard: protocol.GuardRead},
		"payload/files_json_read_whole": protocol.FilesJSONRead{Path: "a.json"},
		"payload/files_json_write": protocol.FilesJSONWrite{
			Path: "a.json", Query: "/b/-", Content: json.RawMessage(`{"z":1.50,"a":null}`), ExpectSHA256: sampleSum, Guard: protocol.GuardChanged,
		},
		"payload/files_json_write_whole": protocol.FilesJSONWrite{Path: "a.json", Content: json.RawMessage(`"x"`)},
		"payload/files_tree":             protocol.FilesTree{Path: "src", Depth: 2, Limit: 100, NoIgnore: true},
		"payload/files_tree_root":        protocol.FilesTree{},
		"payload/http_fetch": protocol.HTTPFetch{
			URL: "https://example.com/a?b=c", Method: "HEAD", Headers: map[string]string{"Accept": "text/plain"}, MaxBytes: 1000, Raw: true,
		},
		"payload/files_glob":     protocol.FilesGlob{Pattern: "**/*.go", Names: true, Path: "src", Limit: 100, NoIgnore: true},
		"payload/files_glob_all": protocol.FilesGlob{Pattern: "*"},
		"payload/files_search_options": protocol.FilesSearch{
			Pattern: "x", IgnoreCase: true, Path: "src", Glob: "*.go", Limit: 20, NoIgnore: true,
		},
		"payload/files_list":       protocol.FilesList{Path: "a"},
		"payload/files_list_root":  protocol.FilesList{},
		"payload/files_exists":     protocol.FilesExists{Path: "a/b.txt"},
		"payload/files_search":     protocol.FilesSearch{Pattern: `func \w+\(`, Path: "src", Glob: "**/*.go"},
		"payload/files_search_all": protocol.FilesSearch{Pattern: "x"},
	}
}

func fileValueSamples() map[string]any {
	return map[string]any{
		"value/files_read": protocol.FilesReadResult{
			Path: "a/b.txt", Content: protocol.Bytes("three\n"), SHA256: sampleSum, Bytes: 30, FirstLine: 3, Lines: 1,
			TotalLines: 9, LineBytes: 300_000, Truncated: true, Encoding: "UTF-16LE", BOM: true, LineEnds: "CRLF",
		},
		"value/files_read_binary": protocol.FilesReadResult{
			Path: "logo.png", Content: binary, SHA256: sampleSum, Bytes: 4, Binary: true,
		},
		"value/files_write": protocol.FilesWriteResult{
			Path: "a/b.txt", Bytes: 3, SHA256: sampleSum, Created: true, Diff: "@@ -0,0 +1 @@\n+foo\n", Links: 1,
		},
		"value/files_edit": protocol.FilesEditResult{
			Path: "a/b.txt", Replacements: 2, Bytes: 3, SHA256: sampleSum, Diff: "@@ -1 +1 @@\n-one\n+two\n", Links: 1,
		},
		"value/files_read_image": protocol.FilesReadResult{
			Path: "logo.png", Content: binary, SHA256: sampleSum, Bytes: 4, Binary: true, Image: "image/png", Raw: true,
		},
		"value/files_edit_outcomes": protocol.FilesEditResult{
			Path: "a", Replacements: 1, Bytes: 3, SHA256: sampleSum, Outcomes: []protocol.EditOutcome{
				{Replacements: 1, Line: 7, Offset: -2}, {Error: protocol.Errorf(codes.EditNotFound, "not there")},
			},
		},
		"value/files_json_read": protocol.FilesJSONReadResult{
			Path: "a.json", Query: "/b", Value: protocol.Bytes("[1, 2.50]"), JSONType: "array", Length: 2, Bytes: 20, SHA256: sampleSum,
		},
		"value/files_json_write": protocol.FilesJSONWriteResult{FilesWriteResult: protocol.FilesWriteResult{
			Path: "a.json", Bytes: 3, SHA256: sampleSum, Created: true, Diff: "@@ -1 +1 @@\n-one\n+two\n",
		}},
		"value/files_tree": protocol.FilesTreeResult{
			Path: "src", Total: 9, Ignored: 4, Skipped: 1, Entries: []protocol.TreeEntry{
				{Path: "src/a", Type: protocol.TypeDir, Hidden: 3}, {Path: "src/b.go", Type: protocol.TypeFile, Size: 10},
			},
		},
		"value/http_fetch": protocol.HTTPFetchResult{
			URL: "https://example.com/b", Status: 200, MediaType: "text/html", Title: "A page", Content: protocol.Bytes("# A page"), Bytes: 512,
			Truncated: true, Redirects: []string{"https://example.com/a"}, Headers: map[string]string{"ETag": `"1"`},
		},
		"value/http_fetch_image": protocol.HTTPFetchResult{
			URL: "https://example.com/i", Status: 200, MediaType: "image/png", Image: "image/png", Content: protocol.Bytes("\x89PNG"), Bytes: 4,
		},
		"value/files_glob": protocol.FilesGlobResult{Paths: []string{"a.go", "b/c.go"}, Total: 3, Skipped: 1, Ignored: 5},
		"value/files_list": protocol.FilesListResult{
			Path: "a", Total: 2001, Entries: []protocol.DirEntry{
				{Name: "b.txt", Type: protocol.TypeFile, Size: 30},
				{Name: "c", Type: protocol.TypeDir},
				{Name: "d", Type: protocol.TypeSymlink, Size: 5},
				{Name: "e", Type: protocol.TypeOther},
			},
		},
		"value/files_exists":        protocol.FilesExistsResult{Path: "a/b.txt", Exists: true, Type: protocol.TypeFile, Size: 30},
		"value/files_exists_absent": protocol.FilesExistsResult{Path: "nothing"},
		"value/files_search": protocol.FilesSearchResult{
			Matches: []protocol.Match{{Path: "src/a.go", Line: 7, Text: "func a() {"}},
			Total:   700, Stopped: true, Files: 12, Skipped: 3, Binary: 5, Ignored: 4,
			SkippedPaths: []string{"secret"}, BinaryPaths: []string{"a.png"},
		},
	}
}
