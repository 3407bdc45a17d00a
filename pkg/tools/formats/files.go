package formats

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// Files returns the five tools that many agents have for files, sorted by name, made out of
// toolset.Core. Their texts are those of a widely read tutorial: "Error: " begins every failure.
func Files(core []tools.Tool) []tools.Tool {
	s := &system{core: core, format: &tools.Format{Text: filesText}}
	return []tools.Tool{
		tool(s, "edit", tools.Define("edit_file", "Replace the first occurrence of a text in a file. When it fails, the file is as it was.",
			pathProperty+`,
			"search": {"type": "string", "minLength": 1, "description": "The text to replace, exactly as it is in the file."},
			"replace": {"type": "string", "description": "The text to put in its place; empty to delete."}`, "path", "search", "replace"), editFile),
		tool(s, "glob", tools.Define("list_files", "List the files of the workspace that match a glob, one path a line, sorted. "+
			"Directories of packages and caches, such as node_modules, are left out unless the pattern begins with one.",
			`"pattern": {"type": "string", "minLength": 1, "default": "*", "description": "*.go matches at the top, **/*.go at every depth. Default: *, the files at the top."}`), listFiles),
		tool(s, "read", tools.Define("read_file", "Read a text file. Returns its text as it is; what is too long is cut, and the end says so.",
			pathProperty, "path"), readFile),
		tool(s, "grep", tools.Define("search_files", "Find the lines of the workspace's files that match a regular expression. Returns path:line: text, sorted. "+
			"What .gitignore files exclude is left out, and so are directories of packages and caches, such as node_modules.",
			`"pattern": {"type": "string", "minLength": 1, "description": "Regular expression in RE2 syntax, matched against each line."},
			"file_pattern": {"type": "string", "description": "Search only files that match, as in *.go (by name) or src/**/*.ts (by path). Default: all."},
			`+contextProperty, "pattern"), searchFiles),
		tool(s, "write", tools.Define("write_file", "Write a file: make it, with its directories, or replace all of its content.",
			pathProperty+", "+contentProperty, "path", "content"), writeFile),
	}
}

type fileArguments struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

func readFile(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"path": args.Path})
}

func writeFile(ours ours, args fileArguments) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"path": args.Path, "content": args.Content})
}

func editFile(ours ours, args struct {
	Path    string `json:"path"`
	Search  string `json:"search"`
	Replace string `json:"replace"`
},
) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"path": args.Path, "old": args.Search, "new": args.Replace})
	return changed(plan, err, func(p *protocol.FilesEdit) { p.First = true })
}

func listFiles(ours ours, args struct {
	Pattern string `json:"pattern"`
},
) (tools.Plan, *protocol.Error) {
	plan, err := ours(map[string]any{"pattern": cmp.Or(args.Pattern, "*"), "gitignore": false})
	return changed(plan, err, func(p *protocol.FilesGlob) { p.NoGenerated = true })
}

func searchFiles(ours ours, args struct {
	Pattern     string `json:"pattern"`
	FilePattern string `json:"file_pattern"`
	Context     int    `json:"context"`
},
) (tools.Plan, *protocol.Error) {
	return ours(map[string]any{"pattern": args.Pattern, "glob": args.FilePattern, "context": args.Context})
}

// filesText is one plain text, and "Error: " begins every failure.
func filesText(a tools.Answer) string {
	if a.Result.Status != protocol.StatusOK {
		return again(a, failed(a, "Error: "+filesFailure(a)))
	}
	path, _ := argument(a, "path")
	text := ""
	switch v := a.Result.Value.(type) {
	case protocol.FilesReadResult:
		if v.Binary && v.Image == "" {
			text = fmt.Sprintf("Error: Not a text file '%s'", path)
		} else {
			text = a.File("find the place with search_files", "find what you need with search_files")
		}
	case protocol.FilesWriteResult:
		text = done(fmt.Sprintf("Successfully wrote to '%s'", path), v.Links)
	case protocol.FilesEditResult:
		text = done(fmt.Sprintf("Successfully edited '%s'", path), v.Links)
	case protocol.FilesGlobResult:
		text = strings.TrimSuffix(a.Found("No files found", nil), "\n")
	case protocol.FilesSearchResult:
		text = strings.TrimSuffix(a.Found("No matches found", func(path, separator string, number int, text string) string {
			return path + separator + strconv.Itoa(number) + separator + " " + text
		}), "\n")
	default:
		text = a.Text(maxText)
	}
	return again(a, text)
}

func filesFailure(a tools.Answer) string {
	code, message := failure(a)
	path, named := argument(a, "path")
	switch {
	case code == "unknown_tool":
		return fmt.Sprintf("Unknown tool '%s'", short(a.Tool))
	case !named || strings.HasPrefix(path, handle):
	case code == "path_escape", code == "invalid_path":
		return fmt.Sprintf("Invalid path '%s'", path)
	case code == protocol.CodeNotFound:
		return fmt.Sprintf("File not found '%s'", path)
	case code == "not_text":
		return fmt.Sprintf("Not a text file '%s'", path)
	case code == "edit_not_found":
		return fmt.Sprintf("Search string not found in '%s'", path)
	}
	return message
}
