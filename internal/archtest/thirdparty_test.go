package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// thirdParty says which packages may import a module that is not ours, so that each stays replaceable at one edge. A
// module without a row fails: decide where its one edge is. Tests may import what they like.
var thirdParty = []struct {
	prefix    string
	importers []string
}{
	{"google.golang.org/grpc", []string{"api/**", "client/**", "internal/listener/grpc", "internal/listener/danube"}},
	{"google.golang.org/protobuf", []string{"api/**", "client/**", "internal/listener/grpc", "internal/listener/danube", "internal/schema"}}, // what .proto files are compiled to
	{"google.golang.org/genproto", []string{"api/**", "client/**", "internal/listener/grpc", "internal/listener/danube"}},
	{"github.com/planetscale/vtprotobuf", []string{"api/**"}},
	{"github.com/alecthomas/kong", []string{"internal/cli"}},
	{"github.com/goccy/go-yaml", []string{"internal/config"}},
	{"github.com/klauspost/compress", []string{"record"}},
	{"github.com/pierrec/lz4", []string{"record"}},
	{"github.com/twmb/franz-go/pkg/kmsg", []string{"record", "internal/listener/kafka"}},
	{"github.com/twmb/franz-go/pkg/kerr", []string{"internal/listener/kafka"}},
	{"github.com/twmb/avro", []string{"internal/schema"}},
	{"github.com/santhosh-tekuri/jsonschema", []string{"internal/schema"}},
	{"github.com/bufbuild/protocompile", []string{"internal/schema"}},
	{"go.etcd.io/raft", []string{"internal/raft"}},
	{"github.com/minio/minio-go", []string{"internal/objstore/s3"}},
	{"github.com/Azure/azure-sdk-for-go", []string{"internal/objstore/azure"}},
	{"golang.org/x/oauth2", []string{"internal/objstore/gcs"}},
	{"github.com/valkey-io/valkey-go", []string{"internal/writebuf/valkey"}},
	{"github.com/alicebob/miniredis", []string{"internal/cli"}}, // stands in for a Valkey server in a demonstration
	{"github.com/cockroachdb/pebble", []string{"processor/state"}},
	{"golang.org/x/sys", []string{"internal/vfs", "internal/server", "internal/cli"}}, // system calls, not a service
}

// metricsLibrary is the exception: every package has metrics of its own. It may be imported where a metrics.go is,
// where registries are made and served, and the HTTP exposition only by the admin listener.
const metricsLibrary = "github.com/prometheus/client_golang"

func thirdPartyRule(tr *tree) []string {
	var findings []string
	dirs, byDir := tr.packages()
	for _, dir := range dirs {
		hasMetrics := slices.ContainsFunc(byDir[dir], func(s *source) bool { return s.path == dir+"/metrics.go" })
		for _, s := range byDir[dir] {
			if s.test || match("test/**", dir) || match("examples/**", dir) {
				continue
			}
			for _, imp := range s.imports() {
				if why := thirdPartyImport(dir, imp, hasMetrics); why != "" {
					findings = append(findings, fmt.Sprintf("%s imports %s: %s", s.path, imp, why))
				}
			}
		}
	}
	return findings
}

func thirdPartyImport(dir, imp string, hasMetrics bool) string {
	first, _, _ := strings.Cut(imp, "/")
	if _, own := internalDir(imp); own || !strings.Contains(first, ".") {
		return "" // ours, or the standard library
	}
	if imp == metricsLibrary+"/prometheus/promhttp" {
		if dir != "internal/listener/admin" {
			return "only internal/listener/admin serves metrics"
		}
		return ""
	}
	if strings.HasPrefix(imp, metricsLibrary) {
		if !hasMetrics && !slices.Contains([]string{"internal/obs", "internal/server", "internal/listener/admin"}, dir) {
			return "metrics live in a package's metrics.go, and this package has none"
		}
		return ""
	}
	for _, row := range thirdParty {
		if imp == row.prefix || strings.HasPrefix(imp, row.prefix+"/") {
			if !matchAny(row.importers, dir) {
				return "only " + strings.Join(row.importers, ", ") + " may"
			}
			return ""
		}
	}
	return "this module has no row in internal/archtest/thirdparty_test.go"
}

func TestThirdParty(t *testing.T) { report(t, thirdPartyRule(repo(t))) }

func TestThirdPartyBites(t *testing.T) {
	breaks(t, thirdPartyRule, map[string]string{
		"internal/broker/a.go":       `package broker; import _ "google.golang.org/grpc/status"`,
		"internal/broker/a_test.go":  `package broker; import _ "google.golang.org/grpc"`,
		"internal/cli/a.go":          `package cli; import _ "github.com/alecthomas/kong"`,
		"internal/config/a.go":       `package config; import _ "github.com/other/yaml"`,
		"internal/meta/a.go":         `package meta; import _ "github.com/prometheus/client_golang/prometheus"`,
		"internal/seglog/a.go":       `package seglog; import _ "github.com/prometheus/client_golang/prometheus"`,
		"internal/seglog/metrics.go": `package seglog; import _ "github.com/prometheus/client_golang/prometheus/promhttp"`,
	},
		"internal/broker/a.go imports google.golang.org/grpc/status: only api/**",
		"internal/config/a.go imports github.com/other/yaml: this module has no row",
		"internal/meta/a.go",
		"internal/seglog/metrics.go imports "+metricsLibrary+"/prometheus/promhttp: only internal/listener/admin",
	)
}
