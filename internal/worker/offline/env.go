package offline

// Env are the variables by which package managers use what they have, and fail at once where that
// is not enough, instead of trying for a minute to reach what cannot be reached. pip
// says why only when it tries again.
func Env() map[string]string {
	return map[string]string{
		"npm_config_fetch_retries": "0", "npm_config_prefer_offline": "true", "npm_config_audit": "false",
		"npm_config_fund": "false", "npm_config_update_notifier": "false", "YARN_ENABLE_NETWORK": "0",
		"PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_OFFLINE": "1", "POETRY_REQUESTS_MAX_RETRIES": "0",
		"CARGO_NET_OFFLINE": "true", "GOPROXY": "off", "MAVEN_ARGS": "--offline",
	}
}
