package cli

import (
	"github.com/leveemq/levee/internal/config"
	"github.com/leveemq/levee/internal/server"
)

// brokerFlags are the settings of a broker that have a flag. The others are in the file or the environment.
type brokerFlags struct {
	Config  string `placeholder:"FILE" variable:"LEVEE_CONFIG" help:"Configuration file, YAML."`
	DataDir string `placeholder:"DIR" help:"Where everything durable lives (./levee-data unless configured)."`
	GRPC    string `name:"grpc" placeholder:"HOST:PORT" help:"Where clients connect (127.0.0.1:6650 unless configured)."`
	HTTP    string `name:"http" placeholder:"HOST:PORT" help:"Health, metrics and profiles (127.0.0.1:9040 unless configured)."`
}

// load puts the configuration together. The flags of every command that say what to present, --tls-cert and
// --tls-key, are the broker's own here.
func (f *brokerFlags) load(a *app) (*config.Config, error) {
	return a.loadConfig(f.Config, map[string]string{"data_dir": f.DataDir, "listen.grpc": f.GRPC, "listen.http": f.HTTP})
}

// loadConfig puts a configuration together from a file, the environment and those of the settings given that are not empty.
func (a *app) loadConfig(file string, given map[string]string) (*config.Config, error) {
	flags := map[string]string{}
	for key, value := range given {
		if value != "" {
			flags[key] = value
		}
	}
	// From the environment these two are config's own to read.
	if v := a.conn.TLSCert; v != a.env["LEVEE_TLS_CERT"] {
		flags["tls.cert"] = v
	}
	if v := a.conn.TLSKey; v != a.env["LEVEE_TLS_KEY"] {
		flags["tls.key"] = v
	}
	return config.Load(config.LoadOptions{File: file, Env: a.environ, Flags: flags})
}

type serverCmd struct {
	brokerFlags
}

// Help describes the command.
func (serverCmd) Help() string {
	return manual{
		text: "Settings come from the file, then LEVEE_ variables, then flags; a later one wins. levee config show prints the result. " +
			"An interrupt or SIGTERM stops the broker in good order: it takes nothing new, answers what it has, flushes, and records a " +
			"clean stop; a second one ends it at once, which loses nothing that was acknowledged under on_commit.",
		example: "levee server --data-dir /var/lib/levee\nlevee server --config levee.yaml --grpc 127.0.0.1:7000",
		rows:    "one object, once it listens; the log is on standard error", row: listeningJSON{},
	}.String()
}

type listeningJSON struct {
	GRPC    string `json:"grpc" doc:"where clients connect; with the port that was free where 0 was asked for"`
	HTTP    string `json:"http" doc:"where health and metrics are"`
	DataDir string `json:"data_dir" doc:"where everything durable lives"`
}

// Run runs a broker until the context is done.
func (c *serverCmd) Run(a *app) error {
	cfg, err := c.load(a)
	if err != nil {
		return withHint(err, "levee config show, or levee config check FILE")
	}
	a.warn(cfg)
	return server.Run(a.ctx, cfg, server.Options{
		Logger: cfg.Log.Logger(a.stderr), Version: buildVersion().Version,
		OnListening: func(at server.Addresses) {
			row := listeningJSON{at.GRPC, at.HTTP, cfg.DataDir}
			_ = a.print(row, "listening for clients on %s, for health and metrics on %s", at.GRPC, at.HTTP) // a reader that went away must not stop a broker
		},
	})
}
