package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	leveev1 "github.com/leveemq/levee/api/levee/v1"
	"github.com/leveemq/levee/client"
	"github.com/leveemq/levee/record"
	"github.com/leveemq/levee/test/proc"
)

// hostile are names that no topic can have.
var hostile = []string{
	"", ".", "..", "/", "//", "/a", "a/", "a//b", "a/b/c", "a/.", "a/..", "./a", "../a", "../../etc/passwd", "..\\a", "a\\b", "C:\\a", "C:a",
	"\x00", "a\x00", "a\x00/b", "a b", " a", "a ", "a\nb", "a\r\nb", "a\tb", "\x1b[2J", "a\x7f",
	"é", "e\xcc\x81", "日本", "😀", "a\u202eb", "a\u200bb", "\ufeffa", "\uff0e\uff0e/a", "a\u2215b", "а" /* Cyrillic */, "\xff\xfe", "\xc0\xae\xc0\xae",
	"%2e%2e", "%2e%2e%2fa", "a%2fb", "a%00", "%", "a%", "a@1", "a@", "@", ".deleted/@1", "a:b", "a*", "a?b", "a#b", "a;b", "a|b", "a&b", "a=b", "a,b", "a+b", "a~",
	"$(id)", "`id`", "${HOME}", "<script>", "'a'", "\"a\"", "{a}", "[a]", "a!", "^a",
	strings.Repeat("a", 201), strings.Repeat("a", 10<<10), "default/" + strings.Repeat("../", 3000), strings.Repeat("n", 201) + "/a",
	strings.Repeat("日", 3000),
}

// odd are names that look hostile and are not: what goes in comes out, and none is taken for another.
var odd = []string{
	"...", "....", ".a", "a.", "a..b", "-", "--", "-rf", "--help", "_", "0", "00", "A", "a", "aA", "Aa", "LOCK", "lock", "run", "identity", "raft", "topics",
	"CON", "nul.log", ".deleted", "salvage", "a.log", "00000000000000000000.log", "durable", "a.tmp", "-part-0", "a-part-", "a-part-x", "a-part-1x",
	"records", "__consumer_offsets", strings.Repeat("a", 200), strings.Repeat(".", 200),
}

// tree returns every file and directory below dir.
func tree(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			names = append(names, strings.TrimPrefix(path, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestHostileNames says names that no topic can have to every call that takes one, on every door: each is an error with
// a kind and a message of a decent length, and nothing of it reaches the disk.
func TestHostileNames(t *testing.T) {
	home := proc.Dir(t)
	cwd, data := filepath.Join(home, "cwd"), filepath.Join(home, "deep", "down", "data")
	for _, dir := range []string{cwd, filepath.Dir(data)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{Broker: proc.Start(t, data, proc.Options{Cwd: cwd}), t: t}
	r.client, r.raw = r.Dial(), r.Raw()
	r = r.on(t)
	r.create("real", client.Settings{})
	before := tree(t, home)
	for i, name := range hostile {
		t.Run(fmt.Sprintf("%.40q", name), func(t *testing.T) {
			r := r.on(t)
			r.hostileRPC(name)
			r.hostileHTTP(name)
			if !strings.Contains(name, "\x00") { // which no argument can hold
				r.hostileCommand(name, i)
			}
		})
	}
	r = r.on(t)
	after := slices.DeleteFunc(tree(t, home), func(name string) bool { return strings.Contains(name, "/data/raft/") })
	before = slices.DeleteFunc(before, func(name string) bool { return strings.Contains(name, "/data/raft/") })
	if !slices.Equal(before, after) {
		t.Errorf("files before:\n%s\nand after:\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	topics, err := r.client.Admin().Topics(r.ctx, "")
	if err != nil || len(topics) != 1 || topics[0].Name != "default/real" {
		t.Errorf("topics are %v, %v", topics, err)
	}
	r.Terminate()
	if code := r.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// hostileRPC says a name to every call. The client's codec sends what is not UTF-8, too.
func (r *rig) hostileRPC(name string) {
	r.t.Helper()
	admin := r.client.Admin()
	_, create := admin.CreateTopic(r.ctx, client.TopicSpec{Name: name})
	_, describe := admin.DescribeTopic(r.ctx, name)
	_, set := admin.SetTopic(r.ctx, name, client.Settings{RetentionBytes: new(int64(1))})
	ctx, cancel := context.WithTimeout(r.ctx, 30*time.Second)
	defer cancel()
	_, publish := r.client.NewProducer(ctx, name, client.ProducerConfig{})
	_, consume := r.client.Consume(ctx, name, client.ConsumerConfig{})
	_, partition := r.client.Consume(ctx, name, client.ConsumerConfig{Partitions: []int32{0}, From: client.Latest()})
	for what, err := range map[string]error{
		"create": create, "describe": describe, "set": set, "delete": admin.DeleteTopic(r.ctx, name), "unload": admin.UnloadTopic(r.ctx, name),
		"publish": publish, "consume": consume, "consume a partition": partition,
	} {
		wantKind(r.t, what, err, client.KindInvalidArgument)
	}
	namespace, _, qualified := strings.Cut(name, "/")
	if name != "" && (!qualified || hostilePart(namespace)) {
		wantKind(r.t, "create namespace", admin.CreateNamespace(r.ctx, name), client.KindInvalidArgument)
	}
	if strings.ToValidUTF8(name, "") == name {
		_, err := r.raw.PublishOnce(r.ctx, &leveev1.PublishOnceRequest{Topic: name, Records: onceRecords(value("x"))})
		wantKind(r.t, "publish once", err, client.KindInvalidArgument)
	}
}

func hostilePart(s string) bool {
	return s == "" || s == "." || s == ".." || len(s) > 200 || strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", c)
	})
}

// hostileHTTP says a name as a part of a path, as it must be written there and as it must not.
func (r *rig) hostileHTTP(name string) {
	r.t.Helper()
	encoded := ""
	for _, b := range []byte(name) {
		encoded += fmt.Sprintf("%%%02x", b)
	}
	paths := map[string]string{"escaped": url.PathEscape(name), "all escaped": encoded}
	if !strings.ContainsAny(name, " \r\n\x00?#") { // which end a path, or a request line
		paths["as it is"] = name
	}
	for how, part := range paths {
		for _, rq := range [][2]string{
			{"PUT", ""}, {"GET", ""}, {"PATCH", ""}, {"DELETE", ""}, {"POST", "/records"}, {"GET", "/records"}, {"GET", "/records?follow=1"},
		} {
			body := "{}"
			a := r.send(rq[0], "/v1/topics/default/"+part+rq[1], body)
			r.wantRefusal(fmt.Sprintf("%s %s%s", rq[0], how, rq[1]), part, a, how)
		}
		r.wantRefusal("PUT namespace "+how, part, r.send("PUT", "/v1/namespaces/"+part, ""), how)
		if name != "" {
			r.wantRefusal("PUT topic in namespace "+how, part, r.send("PUT", "/v1/topics/"+part+"/t", ""), how)
		}
	}
}

// wantRefusal wants an error of ours. Where a path is not what a client should send, net/http may send it to the path
// it cleans it to, and refuse what is no request at all in its own words.
func (r *rig) wantRefusal(what, part string, a answer, how string) {
	r.t.Helper()
	switch {
	case a.status == 400 && a.kind == client.KindInvalidArgument && len(a.message) < 2000:
	case a.status == 404 && a.kind == client.KindNotFound: // other slashes, another path
	case a.status == 405 && a.kind == client.KindInvalidArgument:
	case a.status >= 301 && a.status <= 308 && strings.HasPrefix(a.where, "/") && !strings.Contains(a.where, ".."):
	case how == "as it is" && a.status == 400 && strings.HasPrefix(string(a.body), "400 Bad Request"):
	case len(part) > 20<<10 && a.status == 431:
	default:
		r.t.Errorf("%s: answered %d %q to %q: %.300s", what, a.status, a.kind, a.where, a.body)
	}
}

// send writes a request as it is, without what a client library would correct.
func (r *rig) send(method, target, body string) answer {
	r.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(r.ctx, "tcp", r.HTTP)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(proc.Patience))
	if _, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: levee\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", method, target, len(body), body); err != nil {
		r.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		r.t.Fatalf("%s %.100q: %v", method, target, err)
	}
	return readAnswer(r.t, res)
}

// hostileCommand has a command create a topic of that name, and another command, by turns, use it.
func (r *rig) hostileCommand(name string, turn int) {
	r.t.Helper()
	others := [][]string{{"topic", "describe"}, {"topic", "delete"}, {"topic", "set"}, {"publish"}, {"consume", "--count", "1"}, {"namespace", "create"}}
	for _, args := range [][]string{{"topic", "create"}, others[turn%len(others)]} {
		args = append(args, "--", name)
		if args[1] == "set" {
			args = append(args, "retention-bytes=1MiB")
		}
		if namespace, _, qualified := strings.Cut(name, "/"); args[0] == "namespace" && qualified && !hostilePart(namespace) {
			continue
		}
		res := r.levee([]byte("x\n"), args...)
		if res.Code != 1 && res.Code != 2 || len(res.Stderr) < 20 || len(res.Stderr) > 4<<10 || res.Stdout != "" && args[0] != "publish" {
			r.t.Errorf("levee %q: exit code %d, %q, %.300q", args[:2], res.Code, res.Stdout, res.Stderr)
		}
	}
}

// TestOddNames uses names that are allowed and look as if they were not: each is a topic of its own, on every door.
func TestOddNames(t *testing.T) {
	r := newRig(t, nil)
	for _, name := range odd {
		if _, err := r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: name}); err != nil {
			t.Errorf("create %q: %v", name, err)
		}
	}
	for i, name := range odd {
		if a := r.http("POST", "/v1/topics/default/"+url.PathEscape(name)+"/records", "text/plain", []byte("http "+name)); a.status != 200 {
			t.Errorf("POST to %q: %d %s", name, a.status, a.body)
		}
		p, err := r.client.NewProducer(r.ctx, name, client.ProducerConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.PublishSync(r.ctx, record.Record{Value: []byte("grpc " + name)}); err != nil {
			t.Error(err)
		}
		if err := p.Close(r.ctx); err != nil {
			t.Error(err)
		}
		if i%4 == 0 {
			if res := r.levee([]byte("cli "+name), "publish", "--", name); res.Code != 0 {
				t.Errorf("levee publish %q: %s", name, res.Stderr)
			}
		}
	}
	r.Kill()
	after := &rig{Broker: proc.Start(t, r.Dir, proc.Options{}), t: t}
	after.client = after.Dial()
	after = after.on(t)
	topics, err := after.client.Admin().Topics(after.ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, topic := range topics {
		names = append(names, strings.TrimPrefix(topic.Name, "default/"))
	}
	want := slices.Sorted(slices.Values(odd))
	if got := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
		t.Errorf("topics after a restart:\n%q\nwant\n%q", got, want)
	}
	for i, name := range odd {
		want := []string{"http " + name, "grpc " + name}
		if i%4 == 0 {
			want = append(want, "cli "+name)
		}
		var got []string
		for _, m := range after.records(name) {
			got = append(got, string(m.Value))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q holds %q", name, got)
		}
	}
	after.Terminate()
	if code := after.Wait(); code != 0 {
		t.Errorf("the broker ended with exit code %d", code)
	}
}

// TestPartitionNames: where X is a topic, X-part-N would be taken for one of its partitions, and cannot be a topic, nor the
// other way round.
func TestPartitionNames(t *testing.T) {
	r := newRig(t, nil)
	for _, step := range []struct{ do, name, kind string }{
		{"create", "a", ""}, {"create", "a-part-0", client.KindAlreadyExists}, {"create", "a-part-007", client.KindAlreadyExists},
		{"create", "a-part-99999999999999999999", client.KindAlreadyExists}, {"create", "a-part-0-part-1", ""}, {"create", "a-part-x", ""},
		{"create", "b-part-3", ""}, {"create", "b", client.KindAlreadyExists}, {"create", "b-part-4", ""},
		{"delete", "b-part-3", ""}, {"create", "b", client.KindAlreadyExists}, {"delete", "b-part-4", ""}, {"create", "b", ""}, {"create", "b-part-3", client.KindAlreadyExists},
		{"delete", "a", ""}, {"create", "a-part-0", client.KindAlreadyExists}, {"delete", "a-part-0-part-1", ""}, {"create", "a-part-0", ""},
		{"create", "a", client.KindAlreadyExists},
	} {
		var err error
		if step.do == "create" {
			_, err = r.client.Admin().CreateTopic(r.ctx, client.TopicSpec{Name: step.name})
		} else {
			err = r.client.Admin().DeleteTopic(r.ctx, step.name)
		}
		if kindOf(err) != step.kind {
			t.Errorf("%s %s: got %v, want %q", step.do, step.name, err, step.kind)
		}
		if step.kind != "" {
			refused(t, step.name, r.http("PUT", "/v1/topics/default/"+step.name, "", nil), 409, step.kind)
			if res := r.levee(nil, "topic", "create", step.name); res.Code != 1 || !strings.Contains(res.Stderr, "another name") {
				t.Errorf("levee topic create %s: exit code %d, %s", step.name, res.Code, res.Stderr)
			}
		}
	}
	if a := r.http("GET", "/v1/topics?namespace=default", "", nil); !json.Valid(a.body) || strings.Count(string(a.body), `"name"`) != 3 {
		t.Errorf("topics are %s", a.body)
	}
	r.Healthy()
}
