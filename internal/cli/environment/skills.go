package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/cli"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// skill is a folder with instructions for one kind of work, in the format of other agents.
type skill struct {
	Name        string `yaml:"name"`
	Description string `yaml:"description"`

	folder string
}

const skillFile = "SKILL.md"

// Bounds of what a session reads of skills.
const (
	maxSkills     = 200
	maxSkillFiles = 100 // of one skill, that are listed
)

// openSkills returns the tool that reads the skills of --skills; none without the flag. What is no
// skill is reported to warn, and left out.
func (f ToolFlags) openSkills(warn func(string)) ([]tools.Tool, error) {
	if f.Skills == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(f.Skills)
	if err != nil {
		return nil, cli.Usagef("--skills %s: %v", f.Skills, errors.Unwrap(err))
	}
	var skills []skill
	for _, entry := range entries {
		folder := filepath.Join(f.Skills, entry.Name())
		path := filepath.Join(folder, skillFile)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err != nil && !entry.IsDir() {
			continue
		}
		if len(skills) == maxSkills {
			return nil, cli.Usagef("--skills %s: has more than %d skills", f.Skills, maxSkills)
		}
		s, err := readSkill(folder, skills)
		if err != nil {
			warn(fmt.Sprintf("the skill is left out: %s: %v", path, err))
			continue
		}
		skills = append(skills, s)
	}
	if len(skills) == 0 {
		return nil, cli.Usagef("--skills %s: has no folder with a %s that can be read", f.Skills, skillFile)
	}
	return []tools.Tool{skillTool(skills)}, nil
}

// readSkill reads what the system prompt says of a skill, next to others.
func readSkill(folder string, others []skill) (skill, error) {
	s := skill{folder: folder}
	if _, err := yamlfile.FrontMatter(filepath.Join(folder, skillFile), &s); err != nil {
		return s, err
	}
	s.Name, s.Description = strings.TrimSpace(s.Name), strings.Join(strings.Fields(s.Description), " ")
	switch {
	case s.Name == "" || s.Description == "":
		return s, errors.New("line 1: name and description are required")
	case slices.ContainsFunc(others, func(other skill) bool { return other.Name == s.Name }):
		return s, fmt.Errorf("another skill has the name %s", s.Name)
	}
	return s, nil
}

type skillArguments struct {
	Name string `json:"name"`
	File string `json:"file"`
}

// skillTool is the tool by which a model reads skills. Its hint lists them.
func skillTool(skills []skill) tools.Tool {
	names, lines := make([]string, len(skills)), []string{"Read a skill with the tool skill before you begin work that its description fits. The skills are:"}
	for i, s := range skills {
		names[i] = s.Name
		lines = append(lines, "- "+s.Name+": "+s.Description)
	}
	schema, err := json.Marshal(map[string]any{
		"type": "object", "required": []string{"name"}, "additionalProperties": false,
		"properties": map[string]any{
			"name": map[string]any{"type": "string", "enum": names, "description": "Name of the skill."},
			"file": map[string]any{"type": "string", "description": "A further file of the skill. Default: its instructions."},
		},
	})
	if err != nil {
		panic(fmt.Sprintf("encode schema: %v", err)) // strings always encode
	}
	return tools.Tool{
		Metadata:   tools.Metadata{Hint: strings.Join(lines, "\n"), Effect: tools.Effect{ReadOnly: true, Idempotent: true}},
		Definition: tools.Definition{Name: "skill", Description: "Read the instructions of a skill, or another file of it.", Schema: schema},
		Plan: tools.PlanOf(func(_ tools.Scope, args skillArguments) (tools.Plan, *protocol.Error) {
			s := skills[slices.Index(names, args.Name)] // the schema allows no other name
			return tools.Plan{Inline: func(context.Context) (string, *protocol.Error) { return s.read(args.File) }}, nil
		}),
	}
}

// read returns a file of the skill; "" is its instructions, with the names of its other files.
func (s skill) read(file string) (string, *protocol.Error) {
	if file == "" {
		text, err := yamlfile.FrontMatter(filepath.Join(s.folder, skillFile), &struct{}{})
		if err != nil {
			return "", protocol.Errorf(protocol.CodeToolFailed, "The skill %s cannot be read: %s %v.", s.Name, skillFile, err)
		}
		if others := s.files(); len(others) > 0 {
			text += "\n\n[The skill has these files, which the argument file reads: " + strings.Join(others, ", ") + "]"
		}
		return text, nil
	}
	root, err := os.OpenRoot(s.folder)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeToolFailed, "The skill %s cannot be read: %v.", s.Name, errors.Unwrap(err))
	}
	defer func() { _ = root.Close() }() // it was only read
	text, err := readBounded(root, filepath.FromSlash(file))
	if err != nil {
		return "", protocol.Errorf(protocol.CodeNotFound, "The skill %s has no file %s that can be read (%v). Its files are: %s.", s.Name, file, err, strings.Join(s.files(), ", "))
	}
	return text, nil
}

// readBounded reads a regular file, which may not lead out of the root.
func readBounded(root *os.Root, name string) (string, error) {
	content, err := regular.ReadIn(root, name, yamlfile.MaxFront)
	if err != nil {
		return "", errors.Unwrap(err)
	}
	return string(content), nil
}

// files are the paths of the skill's other files, sorted, without hidden ones.
func (s skill) files() []string {
	var files []string
	_ = fs.WalkDir(os.DirFS(s.folder), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return nil //nolint:nilerr // what cannot be read is left out
		case strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case len(files) == maxSkillFiles:
			return fs.SkipAll
		case entry.Type().IsRegular() && path != skillFile:
			files = append(files, path)
		}
		return nil
	})
	return files
}
