from tests.support.savepoint_fixtures import local, location, repository, server, stores, stuck

__all__ = ["local", "location", "repository", "server", "stores", "stuck"]
