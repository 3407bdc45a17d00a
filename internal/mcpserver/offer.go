package mcpserver

import (
	"encoding/json"
	"sync"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

// offer is what clients may call now.
type offer struct {
	tools atomic.Pointer[tools.Table]

	mu      sync.Mutex
	told    map[string]string // by name, as clients get them
	reading *Server           // whose tools change nothing; nil without one
}

// SetTools has clients call other tools from now on. Clients that listen are told when that changes
// anything for them (tools/list_changed); calls that run go on.
func (s *Server) SetTools(table *tools.Table) {
	s.offer.mu.Lock()
	defer s.offer.mu.Unlock()
	s.offer.tools.Store(table)
	told := map[string]string{}
	for _, definition := range table.DefinitionsFor("") {
		tool, _ := table.Lookup(definition.Name)
		if tool == nil || !callable(tool) {
			continue
		}
		described := described(tool)
		body, _ := json.Marshal(described) // it has nothing that JSON has not
		if told[tool.Name] = string(body); s.offer.told[tool.Name] != told[tool.Name] {
			s.server.AddTool(described, s.call)
		}
	}
	for name := range s.offer.told {
		if told[name] == "" {
			s.server.RemoveTools(name)
		}
	}
	s.offer.told = told
	if s.offer.reading != nil {
		s.offer.reading.SetTools(harmless(table))
	}
}

// readingServer is a server whose tools change nothing, and which has those of this one otherwise.
func (s *Server) readingServer() *Server {
	s.offer.mu.Lock()
	defer s.offer.mu.Unlock()
	o := s.options
	o.Tools = harmless(s.offer.tools.Load())
	s.offer.reading = New(o)
	s.offer.reading.following, s.offer.reading.reads = s.following, true
	return s.offer.reading
}

// harmless are the tools that change nothing, by more than the word of a server of others.
func harmless(table *tools.Table) *tools.Table {
	var names []string
	for _, name := range table.Names() {
		if tool, _ := table.Lookup(name); tool != nil && tool.Effect.ReadOnly && !tool.Effect.Hinted {
			names = append(names, name)
		}
	}
	return table.Only(names)
}
