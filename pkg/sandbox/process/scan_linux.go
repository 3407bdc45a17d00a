package process

import (
	"os"
	"slices"
)

// scan looks for the processes of the tree, ended ones included.
func (t *tree) scan() ([]proc, error) {
	procs, err := readProcs()
	if err != nil {
		return nil, err
	}
	s := scanner{tree: t, children: make(map[int][]proc)}
	for _, p := range procs {
		s.children[p.ppid] = append(s.children[p.ppid], p)
	}
	pid := os.Getpid()
	if i := slices.IndexFunc(procs, func(p proc) bool { return p.pid == pid }); i >= 0 {
		s.self = procs[i]
	}
	for _, p := range s.children[pid] {
		s.child(p)
	}
	return s.members, nil
}

// scanner is one scan.
type scanner struct {
	tree     *tree
	self     proc
	children map[int][]proc // by parent
	members  []proc
}

// child looks at a child of this process and at what is below it.
func (s *scanner) child(p proc) {
	switch {
	case p.pid == s.tree.pid && p.start == s.tree.born:
		s.take(p)
	case p.session == s.self.session || commands.isMain(p.pid): // somebody else's
	default:
		s.orphan(p)
	}
}

// orphan looks at a process that has lost its parent, and at what is below it.
func (s *scanner) orphan(p proc) {
	if s.belongs(p) {
		s.take(p)
		return
	}
	for _, below := range s.children[p.pid] {
		s.orphan(below)
	}
}

// belongs reports whether an orphan shows that it is of the tree.
func (s *scanner) belongs(p proc) bool {
	if s.tree.in.owns(p.pid) {
		return true // of an earlier command too, which it has hidden from
	}
	if p.start < s.tree.born {
		return false
	}
	_, session := s.tree.sessions[p.session]
	return session || s.tree.brand.of(p.pid) || markOf(p.pid) == s.tree.mark
}

// take adds a process and everything below it to the members.
func (s *scanner) take(p proc) {
	s.members = append(s.members, p)
	s.tree.sessions[p.session] = struct{}{}
	for _, below := range s.children[p.pid] {
		s.take(below)
	}
}
