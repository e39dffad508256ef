# shop.py
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import fairlead
from fairlead.contrib.asgi import lifespan
from fairlead.contrib.sqlalchemy import Submitter

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
ENGINE_URL = os.environ.get("SHOP_ENGINE_URL", "sqlite+aiosqlite:///shop.db?timeout=30")
# the same database on PostgreSQL: postgresql://db/shop and postgresql+asyncpg://db/shop

tasks = fairlead.App(URL)
engine = create_async_engine(ENGINE_URL)
Sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    confirmed: Mapped[int] = mapped_column(default=0)


@tasks.task
async def confirm(order: int) -> None:
    async with Sessions.begin() as session:
        found = await session.get_one(Order, order)
        found.confirmed += 1


async def place_order(request: Request) -> Response:
    number = int(request.path_params["number"])
    async with Sessions.begin() as session:
        session.add(Order(id=number))
        await Submitter(session).submit_async(confirm, order=number)
        if number % 3 == 0:
            raise HTTPException(409, "sold out")  # neither the order nor its task exists
    return Response(status_code=201)


@asynccontextmanager
async def tables(site: Starlette) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


site = Starlette(
    routes=[Route("/orders/{number:int}", place_order, methods=["POST"])],
    lifespan=lifespan(tasks, tables),
)
