package process

import (
	"os"
	"slices"
)

// scan looks for the processes of the tree, and for strangers: children of this
// process, born since the command, that are in another session, and of which it is
// not known who started them.
func (t *tree) scan() (members, strangers []proc, err error) {
	procs, err := readProcs()
	if err != nil {
		return nil, nil, err
	}
	children := make(map[int][]proc)
	for _, p := range procs {
		children[p.ppid] = append(children[p.ppid], p)
	}
	s := scanner{tree: t, self: self(procs), children: children}
	for _, p := range children[s.self.pid] {
		s.child(p)
	}
	return s.members, s.strangers, nil
}

func self(procs []proc) proc {
	pid := os.Getpid()
	if i := slices.IndexFunc(procs, func(p proc) bool { return p.pid == pid }); i >= 0 {
		return procs[i]
	}
	return proc{pid: pid}
}

// scanner is one scan.
type scanner struct {
	tree     *tree
	self     proc
	children map[int][]proc // by parent

	members   []proc
	strangers []proc
}

// child looks at a child of this process and at what is below it.
func (s *scanner) child(p proc) {
	switch {
	case p.pid == s.tree.pid && p.start == s.tree.born:
		s.take(p)
	case p.session == s.self.session || commands.isMain(p.pid):
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
	if p.ppid == s.self.pid && p.start >= s.tree.born && (p.ended() || markOf(p.pid) == "") {
		s.strangers = append(s.strangers, p)
	}
	for _, below := range s.children[p.pid] {
		s.orphan(below)
	}
}

// belongs reports whether an orphan shows that it is of the tree.
func (s *scanner) belongs(p proc) bool {
	if p.start < s.tree.born {
		return false
	}
	_, session := s.tree.sessions[p.session]
	_, group := s.tree.sessions[p.pgrp]
	return session || group || markOf(p.pid) == s.tree.mark
}

// take adds a process and everything below it to the members.
func (s *scanner) take(p proc) {
	s.members = append(s.members, p)
	s.tree.sessions[p.session] = struct{}{}
	for _, below := range s.children[p.pid] {
		s.take(below)
	}
}
