"""Thin adapters to what services are built with: `asgi` for Starlette and FastAPI, `prometheus` for metrics.

Each is imported by name, and needs the package it is for only when it is used.
"""
